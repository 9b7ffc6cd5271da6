"""Make a knowledge base equal to a folder: plan, read, embed, write, report."""

import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from ingest.collection import lock_path
from ingest.document import FailedSource
from ingest.embedder import EmbedderLike
from ingest.listing import list_files
from ingest.lock import writing_now
from ingest.outcome import FinishedFile, Outcome
from ingest.plan import NOTHING, Earlier, Plan, make_plan
from ingest.prepare import FileEnd, Job, Read
from ingest.prepared import PreparedDocument
from ingest.report import Progress, Report
from ingest.settings import IngestOptions
from ingest.store import KnowledgeBase
from ingest.workers import Workers
from ingest.writer import Place, Vectors, Writer

FIRST_BATCH = 64
"""Chunks of the first batch; each after it has twice as many, up to the largest."""

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

        def tell() -> None:
            if progress:
                progress(outcome.progress)

        if plan.todo:
            tell()
            with closing(_reads(plan, knowledge_base.embedder, options)) as reads:
                # Two batches may be lost by a kill, the one being embedded and the one being written.
                batches = _batches(reads, outcome, max(1, options.batch_chunks // 2), tell)
                _write(batches, writer, outcome, tell)
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
        tokens = getattr(embedder, "tokens", embedder)
        job = Job(options.recipe(), tokens, limit, options.file_memory_mib)
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


def _batches(reads: Reads, outcome: Outcome, largest: int, tell: Callable[[], None]) -> Iterator[_Batch]:
    """The first ones are smaller: there is nothing yet to be embedded while they are read."""
    size, batch = min(FIRST_BATCH, largest), _Batch()
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
                    size, batch = min(2 * size, largest), _Batch()
            batch.complete.append(read)
        tell()
        if len(batch.places) >= size:
            yield batch
            size, batch = min(2 * size, largest), _Batch()
    yield batch


def _write(batches: Iterator[_Batch], writer: Writer, outcome: Outcome, tell: Callable[[], None]) -> None:
    """Embed and write, each in a thread: while one batch is embedded, the one before is written, the next one read."""
    is_over = threading.Event()

    def embedded(chunks: int) -> None:
        if is_over.is_set():
            raise _Over
        outcome.embedded(chunks)
        tell()

    def note(stored: Future[_Batch] | None) -> None:
        if stored:
            _note_written(stored.result(), outcome)
            tell()

    with _thread("embedding") as embedding, _thread("writing") as writing:
        before: tuple[_Batch, Future[Vectors]] | None = None
        stored: Future[_Batch] | None = None
        try:
            for batch in chain(batches, (None,)):
                wanted = writer.look_up(batch.places) if batch else None
                if before:
                    vectors = before[1].result()
                    note(stored)
                    stored = writing.submit(_store, before[0], vectors, writer)
                before = (batch, embedding.submit(writer.embed, wanted, embedded)) if batch and wanted else None
            note(stored)
        finally:
            is_over.set()


class _Over(Exception):
    """The run has failed or was interrupted: what is still being embedded is not wanted."""


def _thread(name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix=name)


def _store(batch: _Batch, vectors: Vectors, writer: Writer) -> _Batch:
    writer.add(batch.places, vectors)
    for one in batch.complete:
        if isinstance(one, PreparedDocument):
            writer.commit(one)
        else:
            writer.finish(one.file, one.content_hash, one.sources, one.kept, one.failure)
    writer.publish()
    return batch


def _note_written(batch: _Batch, outcome: Outcome) -> None:
    documents = [one for one in batch.complete if isinstance(one, PreparedDocument)]
    outcome.written(documents, files=len(batch.complete) - len(documents), chunks=len(batch.places))
