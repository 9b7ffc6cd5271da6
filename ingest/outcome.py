"""What becomes of each file and document of a run, as it goes."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ingest.document import FailedSource
from ingest.plan import Plan
from ingest.prepare import FileEnd
from ingest.prepared import PreparedDocument
from ingest.report import Progress, Report
from ingest.rows import Failure, StoredDocument

LOST = "was added without a file, and its text is no longer in Chroma: add it again"


@dataclass
class _Found:
    """What has come out of a file so far: the sources of its documents, and those in it that failed."""

    sources: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class FinishedFile:
    """A file that was read: its hash, None when not all of it could be, its sources, those that stay as they were, and
    why it is not to be tried again.

    The five are the arguments of `Writer.finish`.
    """

    file: str
    content_hash: str | None
    sources: frozenset[str]
    kept: frozenset[str]
    failure: Failure | None


class Outcome:
    """Takes what is read, says what is to be written, and ends as a report."""

    def __init__(self, plan: Plan, documents: Iterable[StoredDocument], limits: str) -> None:
        self._plan, self._limits = plan, limits
        self._before = {document.source: document for document in documents}
        self._sources_of: defaultdict[str | None, set[str]] = defaultdict(set)
        for document in self._before.values():
            self._sources_of[document.file].add(document.source)
        self._found: defaultdict[str, _Found] = defaultdict(_Found)
        self._problems: dict[str, tuple[str, ...]] = {}
        self._written: set[str] = set()
        self._failed = dict(plan.failed)
        self._skipped = set(plan.skipped)
        self._removed = {source for file in plan.gone for source in self._sources_of[file]}
        self._unchanged: set[str] = set()
        for file in plan.unchanged | plan.failed.keys():
            self._leave(self._sources_of[file])
        self._files, self._chunks = len(plan.failed), 0
        self._read: set[str] = set()
        self._chunks_found = self._chunks_embedded = 0

    @property
    def progress(self) -> Progress:
        """How far the run is."""
        failed = len(self._plan.failed)
        return Progress(
            self._files,
            total=len(self._plan.todo) + failed,
            chunks=self._chunks,
            read=len(self._read) + failed,
            found=self._chunks_found,
            embedded=self._chunks_embedded,
        )

    def is_new(self, file: str, document: PreparedDocument) -> bool:
        """Note a document that was read; whether it has to be written."""
        self._read.add(file)
        self._found[file].sources.add(document.source)
        stored = self._before.get(document.source)
        if stored and (stored.content_hash, stored.file) == (document.content_hash, file):
            self._leave([document.source])
            return False
        self._chunks_found += len(document.chunks)
        return True

    def failed(self, file: str, failure: FailedSource) -> None:
        """Note a source that gave no document."""
        if failure.skipped:
            self._skipped.add(failure.source)
        else:
            self._failed[failure.source] = failure.reason
            self._found[file].failed.add(failure.source)

    def lost(self, sources: Iterable[str]) -> None:
        """Note added documents of which Chroma has lost something."""
        self._failed |= dict.fromkeys(sources, LOST)

    def end(self, file: str, end: FileEnd) -> FinishedFile:
        """Note that a file was read to its end, or as far as it could be."""
        self._read.add(file)
        found = self._found.pop(file, _Found())
        if end.reason:
            self._failed[file] = end.reason
            found.failed.add(file)
        before = self._sources_of[file]
        inside = tuple(f"{source}/" for source in found.failed)  # what was in a container that cannot be opened now
        kept = before if file in found.failed else {s for s in before if s in found.failed or s.startswith(inside)}
        self._removed |= before - found.sources - kept
        content_hash = self._plan.todo[file][1]
        failure = Failure(content_hash, self._limits, end.reason) if end.reason and end.is_costly else None
        as_read = None if found.failed else content_hash
        return FinishedFile(file, as_read, frozenset(found.sources), frozenset(kept), failure)

    def embedded(self, chunks: int) -> None:
        """Note that so many chunks more have their vectors."""
        self._chunks_embedded += chunks

    def written(self, documents: Iterable[PreparedDocument], *, files: int, chunks: int) -> None:
        """Note what is in the knowledge base now."""
        for document in documents:
            self._written.add(document.source)
            self._problems[document.source] = document.problems
        self._files += files
        self._chunks += chunks

    def report(self) -> Report:
        """What the run has done."""
        problems = ((source, problem) for source in sorted(self._problems) for problem in self._problems[source])
        return Report(
            added=tuple(sorted(self._written - self._before.keys())),
            changed=tuple(sorted(self._written & self._before.keys())),
            unchanged=len(self._unchanged),
            removed=tuple(sorted(self._removed - self._written)),
            failed=tuple(sorted(self._failed.items())),
            problems=tuple(problems),
            skipped=tuple(sorted(self._skipped)),
            notes=self._plan.notes,
            chunks=self._chunks,
        )

    def _leave(self, sources: Iterable[str]) -> None:
        for source in sources:
            self._unchanged.add(source)
            self._problems[source] = self._before[source].problems
