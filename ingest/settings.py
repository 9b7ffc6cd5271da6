"""The settings of an ingest: environment, then `groundwell.toml`, then the defaults beside each option."""

import os
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from llm.options import EmbedderOptions, Options

ENVIRONMENT_PREFIX = "GROUNDWELL_"


class SettingsFileNotFound(Exception):
    """$GROUNDWELL_CONFIG names a file that is not there."""


class StoreOptions(Options):
    """Where the knowledge bases are."""

    path: Path = Field(Path(".groundwell/store"), description="folder of all knowledge bases")
    knowledge_base: str = Field("default", min_length=1, max_length=200, description="the one used when none is named")


class IngestOptions(Options):
    """How documents are cut and embedded."""

    chunk_tokens: int = Field(320, ge=16, description="embedder's tokens in a chunk at most; its own limit also holds")
    batch_chunks: int = Field(256, ge=1, description="chunks embedded at a time; as many are lost when it is killed")


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
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=_settings_file())


def _settings_file() -> Path:
    named = os.environ.get("GROUNDWELL_CONFIG")
    if named and not Path(named).is_file():
        raise SettingsFileNotFound(f"$GROUNDWELL_CONFIG names {named}, which is not a file")
    return Path(named or "groundwell.toml")
