"""Make a knowledge base equal to a folder: plan, read, embed, write, report."""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ingest.collection import lock_path
from ingest.document import FailedSource
from ingest.embedder import EmbedderLike
from ingest.listing import list_files
from ingest.lock import writing_now
from ingest.outcome import FinishedFile, Outcome
from ingest.plan import NOTHING, Earlier, Plan, make_plan
from ingest.prepare import FileEnd, Job, Read
from ingest.report import Progress, Report
from ingest.settings import IngestOptions
from ingest.store import KnowledgeBase
from ingest.workers import Workers
from ingest.writer import Place, PreparedDocument, Vectors, Writer

Reads = Generator[tuple[str, Read], None, None]


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
    listing = list_files(folder, include=options.include, exclude=options.exclude)
    with knowledge_base.writing() as writer:
        before = _before(knowledge_base)
        plan = make_plan(listing, options.recipe(), options.limits(), before)
        outcome = Outcome(plan, before.documents, options.limits())
        outcome.lost(writer.lost)
        if plan.todo:
            so_far = _SoFar(len(plan.todo), progress or (lambda _: None))
            with closing(_reads(plan, knowledge_base.embedder, options)) as reads:
                # Two batches may be lost by a kill, the one being embedded and the one being written.
                batches = _batches(so_far.reading(reads), outcome, max(1, options.batch_chunks // 2))
                _write(batches, writer, outcome, so_far)
        for file in plan.gone:
            writer.remove_file(file)
        writer.sweep()
    return outcome.report()


def rehearse(folder: Path, knowledge_base: KnowledgeBase | None, options: IngestOptions) -> Report:
    """What an ingest would do, without reading, embedding or writing anything; None where there is none yet.

    Raises FolderNotFound and EmptyFolder.
    """
    listing = list_files(folder, include=options.include, exclude=options.exclude)
    before = _before(knowledge_base) if knowledge_base else NOTHING
    report = make_plan(listing, options.recipe(), options.limits(), before).as_report(before.documents)
    if knowledge_base and (writer := writing_now(lock_path(knowledge_base.folder, knowledge_base.name))):
        note = f"knowledge base {knowledge_base.name!r} is being written by {writer}, which changes what is to be done"
        return replace(report, notes=(*report.notes, note))
    return report


def _before(knowledge_base: KnowledgeBase) -> Earlier:
    journal = knowledge_base.journal
    return Earlier(journal.files(), journal.documents(), journal.failures())


def _reads(plan: Plan, embedder: EmbedderLike, options: IngestOptions) -> Reads:
    """What is in the new and changed files, each with its file's name."""
    files = [(file, path) for file, (path, _) in plan.todo.items()]
    with Workers(min(options.worker_count(), len(files)), options.file_seconds) as workers:
        # The limit may load the model, which takes as long as starting the workers.
        limit = min(options.chunk_tokens, embedder.max_tokens)
        job = Job(options.recipe(), embedder, limit, options.file_memory_mib)
        if options.workers == 0:
            yield from ((file, read) for file, path in files for read in job.read(file, path))
        else:
            with closing(workers.read(files, job)) as reads:
                yield from reads


@dataclass
class _Batch:
    """Chunks that are embedded and written together, and what they make complete, in order."""

    places: list[Place] = field(default_factory=list)
    complete: list[PreparedDocument | FinishedFile] = field(default_factory=list)

    @property
    def files(self) -> int:
        return sum(isinstance(one, FinishedFile) for one in self.complete)


def _batches(reads: Iterator[tuple[str, Read]], outcome: Outcome, size: int) -> Iterator[_Batch]:
    batch = _Batch()
    for file, read in reads:
        if isinstance(read, FailedSource):
            outcome.failed(file, read)
        elif isinstance(read, FileEnd):
            batch.complete.append(outcome.end(file, read))
        elif outcome.is_new(file, read):
            for index in range(len(read.chunks)):
                batch.places.append((read, index))
                if len(batch.places) == size and index < len(read.chunks) - 1:
                    yield batch
                    batch = _Batch()
            batch.complete.append(read)
        if len(batch.places) >= size:
            yield batch
            batch = _Batch()
    yield batch


class _SoFar:
    """How far a run is, told whenever a file is read and while a batch is embedded."""

    def __init__(self, total: int, tell: Callable[[Progress], None]) -> None:
        self._now, self._tell = Progress(0, total, 0), tell
        tell(self._now)

    def reading(self, reads: Reads) -> Iterator[tuple[str, Read]]:
        for file, read in reads:
            if isinstance(read, FileEnd):
                self._now = replace(self._now, read=self._now.read + 1)
                self._tell(self._now)
            yield file, read

    def embedding(self, batch: _Batch, done: int, of: int) -> None:
        """Of the batch's texts that were to be embedded so many are."""
        files, chunks = batch.files * done // of, len(batch.places) * done // of
        self._tell(replace(self._now, files=self._now.files + files, chunks=self._now.chunks + chunks))

    def embedded(self, batch: _Batch) -> None:
        now = self._now
        self._now = replace(now, files=now.files + batch.files, chunks=now.chunks + len(batch.places))
        self._tell(self._now)


def _write(batches: Iterator[_Batch], writer: Writer, outcome: Outcome, so_far: _SoFar) -> None:
    """Embed and write; a batch is written in a thread while the next one is embedded."""
    with ThreadPoolExecutor(1, thread_name_prefix="writing") as thread:
        writing: Future[_Batch] | None = None
        for batch in batches:
            vectors = writer.embed(batch.places, partial(so_far.embedding, batch))
            so_far.embedded(batch)
            if writing:
                _note(writing.result(), outcome)
            writing = thread.submit(_store, batch, vectors, writer)
        if writing:
            _note(writing.result(), outcome)


def _store(batch: _Batch, vectors: Vectors, writer: Writer) -> _Batch:
    writer.add(batch.places, vectors)
    for one in batch.complete:
        if isinstance(one, PreparedDocument):
            writer.commit(one)
        else:
            writer.finish(one.file, one.content_hash, one.sources, one.kept, one.failure)
    writer.publish()
    return batch


def _note(written: _Batch, outcome: Outcome) -> None:
    documents = [one for one in written.complete if isinstance(one, PreparedDocument)]
    outcome.written(documents, chunks=len(written.places))
