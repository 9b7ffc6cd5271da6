"""The settings of an ingest: environment, then `groundwell.toml`, then the defaults beside each option."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from ingest.document import LoadOptions, Scalar
from ingest.metadata import OF_A_CHUNK, REFUSED
from llm.options import EmbedderOptions, Options

if TYPE_CHECKING:
    from ingest.prepare import Recipe

ENVIRONMENT_PREFIX = "GROUNDWELL_"
MOST_WORKERS = 4
"""Where the settings do not say: a few processes read faster than a machine of any size embeds."""


class SettingsFileNotFound(Exception):
    """$GROUNDWELL_CONFIG names a file that is not there."""


class StoreOptions(Options):
    """Where the knowledge bases are."""

    path: Path = Field(Path(".groundwell/store"), description="folder of all knowledge bases")
    knowledge_base: str = Field("default", min_length=1, max_length=200, description="the one used when none is named")

    @field_validator("path", mode="before")
    @classmethod
    def _not_empty(cls, path: object) -> object:
        if path == "":  # Path("") would be the current folder
            raise ValueError("is empty")
        return path


class IngestOptions(Options):
    """Which files go in, and how they are read, cut and embedded."""

    chunk_tokens: int = Field(320, ge=16, description="embedder's tokens in a chunk at most; its own limit also holds")
    batch_chunks: int = Field(512, ge=1, description="chunks embedded again at most after a run was killed")
    include: tuple[str, ...] = Field((), description="patterns as in .gitignore; where given, other files are left out")
    exclude: tuple[str, ...] = Field((), description="patterns as in .gitignore of files and folders to leave out")
    metadata: dict[str, Scalar] = Field({}, description="stored with every chunk of the run, e.g. `{team = 'sales'}`")
    passwords: tuple[SecretStr, ...] = Field((), description="tried on protected files, in this order")
    ocr: bool = Field(False, description="read pages without text with tesseract, where it is installed")
    workers: int | None = Field(
        None, ge=0, description="processes that read files; one a core, four at most; 0: none, and no limits on a file"
    )
    file_seconds: float = Field(120, gt=0, description="time to read one document in, at most; then it is given up")
    file_memory_mib: int = Field(2048, ge=256, description="memory of a process that reads files, at most")

    @field_validator("metadata")
    @classmethod
    def _is_no_place(cls, metadata: dict[str, Scalar]) -> dict[str, Scalar]:
        if taken := sorted(name for name in metadata if name in OF_A_CHUNK or REFUSED.match(name)):
            raise ValueError(f"{', '.join(taken)}: kept for Groundwell and Chroma themselves; choose another name")
        return metadata

    def recipe(self) -> "Recipe":
        """What decides what comes out of a file."""
        from ingest.prepare import Recipe

        passwords = tuple(password.get_secret_value() for password in self.passwords)
        metadata = tuple(sorted(self.metadata.items()))
        return Recipe(LoadOptions(passwords=passwords, ocr=self.ocr), self.chunk_tokens, metadata)

    def limits(self) -> str:
        """What a file may cost: one that has cost more is tried again when this has changed."""
        return "none" if self.workers == 0 else f"{self.file_seconds:g} s, {self.file_memory_mib} MiB"

    def worker_count(self) -> int:
        """Processes that read files: 0 for none."""
        return min(os.cpu_count() or 1, MOST_WORKERS) if self.workers is None else self.workers


class IngestSettings(BaseSettings):
    """What `groundwell ingest` reads: `GROUNDWELL_STORE__PATH`, or `path` in `[store]` of `groundwell.toml`.

    The file is the one in the current folder or the one that $GROUNDWELL_CONFIG names; sections of other parts of
    Groundwell in it are ignored. Raises SettingsFileNotFound and pydantic's ValidationError.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter="__",
        frozen=True,
        extra="ignore",
        nested_model_default_partial_update=True,
    )

    embedder: EmbedderOptions = EmbedderOptions()
    store: StoreOptions = StoreOptions()
    ingest: IngestOptions = IngestOptions()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=settings_file())


def settings_file() -> Path:
    """The file of settings; it need not be there. Raises SettingsFileNotFound for a named one that is not."""
    named = os.environ.get("GROUNDWELL_CONFIG")
    if named and not Path(named).is_file():
        raise SettingsFileNotFound(f"$GROUNDWELL_CONFIG names {named}, which is not a file")
    return Path(named or "groundwell.toml")
