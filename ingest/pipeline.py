"""Make a knowledge base equal to a folder: plan, load, split, embed, write, report."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ingest.journal import in_batches
from ingest.load import FORMATS, UnreadableFile, load
from ingest.settings import IngestOptions
from ingest.split import split
from ingest.store import EmbedderLike, KnowledgeBase
from ingest.writer import Place, PreparedDocument

RECIPE = "2"
"""Raise it when loading or splitting changes what comes out: every file then counts as changed."""
SUPPORTED = ", ".join(sorted(FORMATS))


class FolderNotFound(Exception):
    """The folder to ingest is not there."""


class EmptyFolder(Exception):
    """The folder has no file of a supported format; its documents are not taken out for that."""


@dataclass(frozen=True)
class Listing:
    """The files below a folder by source, the POSIX path below it."""

    files: dict[str, Path]
    skipped: tuple[str, ...] = ()
    unreadable: dict[str, str] = field(default_factory=dict)
    """Folders that cannot be listed, with the reason: what was in them is not gone."""


@dataclass(frozen=True)
class Progress:
    """How far a run is: files out of those that are new or changed, and chunks stored."""

    files: int
    total: int
    chunks: int


@dataclass(frozen=True)
class Report:
    """What a run did; every name is a source."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unchanged: int = 0
    removed: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    """Files that are in, but not with all that they hold."""
    skipped: tuple[str, ...] = ()
    """Files of a format that is not supported."""
    chunks: int = 0

    @property
    def exit_status(self) -> int:
        """0 when every file is in, 1 when some file failed."""
        return 1 if self.failed else 0

    def summary(self) -> str:
        """One line of counts, then one line for each file that failed, is incomplete or was skipped."""
        counts = {"added": len(self.added), "changed": len(self.changed), "unchanged": self.unchanged}
        counts |= {"removed": len(self.removed), "failed": len(self.failed)}
        counts |= {"incomplete": len(self.problems), "skipped": len(self.skipped)}
        always = ("added", "unchanged", "removed")
        first = ", ".join(f"{number} {what}" for what, number in counts.items() if number or what in always)
        lines = [f"failed: {source}: {reason}" for source, reason in self.failed]
        lines += [f"incomplete: {source}: {problem}" for source, problem in self.problems]
        return "\n".join([first, *lines, *self._skipped_line()])

    def _skipped_line(self) -> list[str]:
        shown = ", ".join(self.skipped[:10]) + (", …" if len(self.skipped) > 10 else "")
        return [f"skipped, format not supported: {shown}"] if self.skipped else []


def ingest(
    folder: Path,
    knowledge_base: KnowledgeBase,
    options: IngestOptions = IngestOptions(),  # noqa: B008 (frozen)
    progress: Callable[[Progress], None] | None = None,
) -> Report:
    """Make `knowledge_base` hold the files below `folder`, no more and no less, and say what that took.

    A file that fails is in the report; its former version stays. Raises FolderNotFound and EmptyFolder before
    anything is done, and AlreadyWriting.
    """
    listing = list_files(folder)
    with knowledge_base.writing() as writer:
        run = _Run(listing, knowledge_base, options, progress or (lambda _: None))
        for places in in_batches(run.places(), options.batch_chunks):
            writer.add(places)
            for document in _completed(places):
                writer.commit(document)
            run.stored(places)
        for source in run.gone():
            writer.remove(source)
        writer.sweep()
    return run.report()


def list_files(folder: Path) -> Listing:
    """The files below `folder` that are not hidden. Raises FolderNotFound and EmptyFolder."""
    if not folder.is_dir():
        raise FolderNotFound(f"{folder} is a file, not a folder" if folder.exists() else f"there is no folder {folder}")
    unreadable: dict[str, str] = {}
    seen = {_source(path, folder): path for path in _walk(folder, unreadable)}
    files = {source: path for source, path in sorted(seen.items()) if path.suffix.lower() in FORMATS}
    if not files and not unreadable:
        raise EmptyFolder(f"{folder} has no file of a supported format ({SUPPORTED}); nothing was changed")
    return Listing(files, tuple(sorted(seen.keys() - files.keys())), unreadable)


def _walk(folder: Path, unreadable: dict[str, str]) -> Iterator[Path]:
    def note(error: OSError) -> None:
        unreadable[_source(Path(error.filename), folder)] = error.strerror or str(error)

    inside = folder.resolve()
    for parent, folders, names in os.walk(folder, onerror=note):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(parent, name) for name in sorted(names) if not name.startswith(".")):
            if not path.is_symlink() or path.resolve().is_relative_to(inside):
                yield path


def _source(path: Path, folder: Path) -> str:
    """The name a file is cited by."""
    # Under LC_ALL=C Python holds names that are not ASCII as escapes.
    return os.fsencode(path.relative_to(folder).as_posix()).decode("utf-8", "backslashreplace")


def _completed(places: Iterable[Place]) -> list[PreparedDocument]:
    return [document for document, index in places if index == len(document.chunks) - 1]


class _Run:
    """The files of one run, sorted by what became of them."""

    def __init__(
        self, listing: Listing, knowledge_base: KnowledgeBase, options: IngestOptions, tell: Callable[[Progress], None]
    ) -> None:
        self.listing, self.embedder, self.options, self.tell = listing, knowledge_base.embedder, options, tell
        self.before = {document.source: document.content_hash for document in knowledge_base.documents()}
        self.done: list[PreparedDocument] = []
        self.failed = dict(listing.unreadable)
        self.unchanged = 0
        self.chunks = 0
        self.removed: list[str] = []

    def places(self) -> Iterator[Place]:
        """The chunks of every new or changed file, in order."""
        for source, (path, content_hash) in self.plan().items():
            try:
                document = prepare(path, source, content_hash, self.embedder, self.options)
            except UnreadableFile as error:
                self.failed[source] = error.reason
                continue
            for index in range(len(document.chunks)):
                yield document, index

    def plan(self) -> dict[str, tuple[Path, str]]:
        """The files that are new or changed, with their hash."""
        todo = {}
        for source, path in self.listing.files.items():
            try:
                content_hash = _content_hash(path, self.options)
            except OSError as error:
                self.failed[source] = error.strerror or str(error)
                continue
            if self.before.get(source) == content_hash:
                self.unchanged += 1
            else:
                todo[source] = path, content_hash
        self.total = len(todo) + len(self.failed)
        return todo

    def gone(self) -> list[str]:
        """Documents whose file is no longer there; one in a folder that cannot be listed may well be."""
        here = self.listing.files.keys()
        hidden = tuple("" if folder == "." else f"{folder}/" for folder in self.listing.unreadable)
        self.removed = [source for source in self.before if source not in here and not source.startswith(hidden)]
        return self.removed

    def stored(self, places: list[Place]) -> None:
        self.chunks += len(places)
        # Without the chunks: a run over a large folder would hold all of its text.
        self.done += [replace(document, chunks=()) for document in _completed(places)]
        self.tell(Progress(len(self.done) + len(self.failed), self.total, self.chunks))

    def report(self) -> Report:
        sources = [document.source for document in self.done]
        return Report(
            added=tuple(source for source in sources if source not in self.before),
            changed=tuple(source for source in sources if source in self.before),
            unchanged=self.unchanged,
            removed=tuple(self.removed),
            failed=tuple(sorted(self.failed.items())),
            problems=tuple((document.source, problem) for document in self.done for problem in document.problems),
            skipped=self.listing.skipped,
            chunks=self.chunks,
        )


def prepare(
    path: Path, source: str, content_hash: str, embedder: EmbedderLike, options: IngestOptions
) -> PreparedDocument:
    """Load and split one file. Raises UnreadableFile."""
    document = load(path, source)
    chunks = split(document, embedder.offsets, min(options.chunk_tokens, embedder.max_tokens))
    return PreparedDocument(source, content_hash, tuple(chunks), document.problems)


def _content_hash(path: Path, options: IngestOptions) -> str:
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(f"{RECIPE} {options.chunk_tokens} {content}".encode()).hexdigest()
