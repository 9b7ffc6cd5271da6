"""One file → its documents, cut into chunks and hashed: what a worker process does."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ingest.document import FailedSource, LoadedDocument, LoadOptions, Scalar
from ingest.load import load_all
from ingest.prepared import PreparedDocument
from ingest.split import Offsets, split

RECIPE = "5"
"""Raise it when loading or splitting changes what comes out: every file then counts as changed."""
OUT_OF_MEMORY = (
    "needs more than the {} MiB of memory that a file may take: raise `file_memory_mib` in `[ingest]` of the settings"
    " file, or leave it out with --exclude"
)
READER_FAILED = "its reader failed ({}: {}): convert it to another format, or leave it out with --exclude"
TOLD = 300
"""Characters of a reader's own message."""


class Tokens(Protocol):
    """What splitting needs of an embedder."""

    @property
    def offsets(self) -> Offsets:
        """The character span of each token of a text."""


@dataclass(frozen=True)
class Recipe:
    """What makes of a file what it becomes: two that are equal make the same of the same file."""

    load: LoadOptions = LoadOptions()  # noqa: RUF009 (frozen)
    chunk_tokens: int = 320
    metadata: tuple[tuple[str, Scalar], ...] = ()
    """Stored with every chunk."""

    def file_hash(self, path: Path) -> str:
        """A hash of the file's bytes and of all that decides what comes out of them.

        A password does not: what it opened stays the same, and a file that none opened is tried again at every run.
        """
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        about = f"{RECIPE} {replace(self.load, passwords=())} {self.chunk_tokens} {self.metadata} {content}"
        return hashlib.sha256(about.encode("utf-8", "backslashreplace")).hexdigest()

    def document_hash(self, document: LoadedDocument) -> str:
        """A hash of what was loaded: a document that comes out of its file as before is left as it is."""
        about = f"{RECIPE} {self.chunk_tokens} {self.metadata} {replace(document, text='')}"
        digest = hashlib.sha256(about.encode("utf-8", "backslashreplace"))
        digest.update(document.text.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


@dataclass(frozen=True)
class FileEnd:
    """Follows the last of a file's documents; with a reason, there may be more in it that could not be read."""

    reason: str | None = None
    is_costly: bool = False
    """It crashed its reader or went past a limit: trying it again costs as much again."""


Read = PreparedDocument | FailedSource | FileEnd


@dataclass(frozen=True)
class Job:
    """How files are read: the same for all of a run. It is pickled, and so are the tokens in it."""

    recipe: Recipe
    tokens: Tokens
    """The embedder, or what counts its tokens and is sooner imported."""
    max_tokens: int
    """Of a chunk: what the recipe asks for, or the embedder's own limit."""
    memory_mib: int

    def read(self, file: str, path: Path) -> Iterator[Read]:
        """The documents of one file and the sources in it that failed, then a FileEnd. Raises nothing."""
        try:
            for loaded in load_all(path, file, self.recipe.load):
                yield loaded if isinstance(loaded, FailedSource) else self._prepared(file, loaded)
        except MemoryError:
            yield FileEnd(OUT_OF_MEMORY.format(self.memory_mib), is_costly=True)
        except Exception as error:  # whatever a reader's fault is, it costs one file and not the folder
            yield FileEnd(READER_FAILED.format(type(error).__name__, " ".join(str(error).split())[:TOLD]))
        else:
            yield FileEnd()

    def _prepared(self, file: str, document: LoadedDocument) -> PreparedDocument:
        return PreparedDocument(
            source=document.source,
            content_hash=self.recipe.document_hash(document),
            chunks=tuple(split(document, self.tokens.offsets, self.max_tokens)),
            problems=document.problems,
            file=file,
            metadata={**document.metadata, **dict(self.recipe.metadata)},
        )
