"""`KnowledgeBase`: one Chroma collection with its embedder's fingerprint, and the journal beside it."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from langchain_core.embeddings import Embeddings

from ingest import index, recovery
from ingest.batches import in_batches
from ingest.collection import drop_others, fingerprint, journal_path, lock_path
from ingest.disk import told_plainly
from ingest.embedder import EmbedderLike, adapted
from ingest.journal import Journal, StoredDocument
from ingest.knowledge_bases import EmbedderMismatch, make, start_over, unknown
from ingest.lock import AlreadyWriting, writer_lock
from ingest.probes import measure
from ingest.search import Searching

if TYPE_CHECKING:
    from chromadb.api.models.Collection import Collection

    from ingest.writer import Writer

REOPEN_SECONDS = 2.0
"""A reader loads the index anew this often at most while another process writes; 10^5 chunks take about a second."""
RETRY_AFTER_SECONDS = (0.0, 0.05, 0.2)
LEAST_ROWS = 1000
"""Rows after which the index files are written, or a twentieth of all if that is more: each load takes as many out of
Chroma's log (2,000 a second), and writing takes time with the size of the whole."""

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class KnowledgeBase(Searching):
    """A named set of documents. Any thread may call any method; reading never waits for the writer.

    What another process has committed is seen within REOPEN_SECONDS. Chunks of a document that is not yet complete
    are never returned.
    """

    def __init__(self, folder: Path, name: str, embedder: EmbedderLike) -> None:
        """Use `open`."""
        super().__init__()
        self.folder, self.name, self.embedder = folder, name, embedder
        self.journal = Journal(journal_path(folder, name))
        self._lock = threading.Lock()
        self._is_writing, self._outdated, self._wrote_last = False, True, False
        self.ask(lambda collection: None)
        if self.journal.lexical_is_behind():
            with suppress(AlreadyWriting), self.writing():  # it mends that first, as the other writer has done
                pass

    @classmethod
    def open(
        cls,
        folder: Path,
        name: str,
        embedder: EmbedderLike | Embeddings,
        *,
        create: bool = False,
        rebuild: bool = False,
    ) -> "KnowledgeBase":
        """Open the knowledge base `name` below `folder`.

        `create` makes it when it is not there; `rebuild` makes it anew, empty, for this embedder. Raises
        UnknownKnowledgeBase, EmbedderMismatch and, for `create` and `rebuild`, AlreadyWriting and StoreNotWritable.
        """
        ours = adapted(embedder)
        with told_plainly(folder):
            if not recovery.is_there(folder, name):
                if not create:
                    raise unknown(folder, name)
                make(folder, name, ours)
            elif rebuild:
                start_over(folder, name, ours)
            return cls(folder, name, ours)

    def close(self) -> None:
        """Close the journal. Chroma's part closes when nothing refers to it any more."""
        super().close()
        self.journal.close()

    def count(self) -> tuple[int, int]:
        """The numbers of documents and of chunks."""
        return self.journal.count()

    def documents(self) -> list[StoredDocument]:
        """All documents, by source."""
        return self.journal.documents()

    @contextmanager
    def writing(self) -> Iterator["Writer"]:
        """Be the one writer. Raises AlreadyWriting, which names the other, at once; StoreNotWritable also later."""
        from ingest.writer import Writer

        with told_plainly(self.folder):
            self._renew_journal()
        with told_plainly(self.folder), writer_lock(lock_path(self.folder, self.name), self.name):
            lost = self._prepare() if not self._wrote_last or self._is_behind() else ()
            self._is_writing, self._in_session, self._wrote_last = True, False, False
            try:
                yield Writer(self, self._batch, lost)
                self.publish()
                self._measure()
                self.journal.note_run(datetime.now().astimezone().isoformat(timespec="seconds"))
                self._wrote_last = True
            finally:
                self._generation, self._is_writing = self.journal.generation(), False
                self._outdated = not self._wrote_last  # after a failure in Chroma nothing that is loaded is relied on
                self.publish()

    def _prepare(self) -> tuple[str, ...]:
        self._load(for_writing=True)
        drop_others(self._client, self.name, self.collection.name)
        lost = recovery.agree(self.journal, self.collection, self.name)
        self.publish(check=True)
        return lost

    @contextmanager
    def changing_index(self, rows: int) -> Iterator[None]:
        """Around each write to Chroma: alone where it may make or write the index files; for the writer."""
        if not self._in_session:
            recovery.start_session(self.journal, self.collection)
            self._in_session = True
        if not self.is_empty and self.journal.unwritten() + rows < self._rows:
            yield
            return
        with index.index_lock(self.folder, self.name, exclusive=True):
            before = index.written_at(self.folder, self.collection)
            with index.kept_until_written(self.folder, self.name, self.collection):
                yield
            if index.written_at(self.folder, self.collection) != before:
                self.journal.note_written(rows)
        if self.is_empty or self._rows_between() > 2 * self._rows:
            self._load(for_writing=True)

    def _rows_between(self) -> int:
        return max(LEAST_ROWS, self.journal.count()[1] // 20)

    def ask(self, question: Callable[["Collection"], Result]) -> Result:
        """Put a question to Chroma, on an index that is at most REOPEN_SECONDS old.

        An index that another writer outruns can fail (a row it has not loaded, a first segment that is not on disk yet,
        a collection made anew), and goes on failing until it is loaded again.
        """
        from chromadb.errors import InternalError, NotFoundError

        for seconds in RETRY_AFTER_SECONDS:
            try:
                return question(self._current())
            except (InternalError, NotFoundError):
                time.sleep(seconds)
                self._outdated = not self._is_writing
        return question(self._current())

    def mend_lexical(self) -> None:
        """Make the lexical index anew where it is behind or damaged. Raises AlreadyWriting."""
        if self.journal.lexical_is_behind():
            self._wrote_last = False
            with self.writing():  # mends it first
                pass

    def publish(self, *, check: bool = False) -> None:
        """Let all that is stored be found by its words; for the writer. A lexical index that cannot take it, or, for
        `check`, that is damaged or incomplete, is made anew from Chroma's texts."""
        if not self.journal.index(check=check):
            log.warning("the lexical index of knowledge base %r is made anew from its chunks", self.name)
            self.journal.rebuild_lexical(
                (id_, document.page_content)
                for ids in in_batches(self.journal.ids(), self._batch)
                for id_, document in self.stored(ids).items()
            )

    def _measure(self) -> None:
        """Measure how well each leg finds these chunks, where there are twice as many as the last time, or half."""
        if not self.journal.relevance().is_due(self.count()[1]):
            return
        try:
            measured = measure(self)
        except Exception:  # everything is in by now, and an embedder can fail with anything
            log.warning("knowledge base %r goes on with the weights that it had", self.name, exc_info=True)
        else:
            self.journal.note_relevance(measured)

    def _current(self) -> "Collection":
        if self._outdated:
            self._load()
        elif (self.is_empty or time.monotonic() - self._loaded > self._pause) and self._is_behind():
            self._load(wait=False)
        return self.collection

    def answering(self) -> tuple[str, int]:
        """The collection that answers, and the generation of the journal that it is at least at."""
        collection = self._current()
        return str(collection.id), self.journal.generation() if self._is_writing else self._generation

    def _is_behind(self) -> bool:
        """Whether another process has written since the index was loaded; the writer sees what it writes itself."""
        journal = self.journal
        return not self._is_writing and not (journal.is_at_its_path() and journal.generation() == self._generation)

    def _load(self, *, wait: bool = True, for_writing: bool = False) -> None:
        """Load the index as it is on disk now; a Chroma client never sees what another process has written since."""
        with self._lock:
            self._renew_journal()
            began, generation, live = time.monotonic(), self.journal.generation(), self.journal.live()
            if live is None:
                raise unknown(self.folder, self.name)
            place = self.folder, self.name, live
            self._rows = self._rows_between()
            try:
                if for_writing:
                    unwritten = self.journal.unwritten()
                    client, collection = index.load_for_writing(*place, rows=self._rows, unwritten=unwritten)
                else:
                    client, collection = index.load(*place, wait=wait)
            except index.IndexBusy:  # ask the index that is loaded, and look again later
                self._loaded = time.monotonic()
                return
            if (stored := fingerprint(collection)) != self.embedder.fingerprint:
                self._outdated = True
                raise EmbedderMismatch(self.name, stored, self.embedder.fingerprint)
            self._client, self.collection, self._batch = client, collection, client.get_max_batch_size()
            self._loaded, self.is_empty = time.monotonic(), collection.count() == 0
            self._generation, self._outdated, self._wrote_last = generation, False, False
            # A large index must not be loaded again and again while another process writes to it.
            self._pause = max(REOPEN_SECONDS, self._loaded - began)

    def _renew_journal(self) -> None:
        """Go on with the file in the journal's place: it was deleted and made again, or lost and made anew."""
        if not self.journal.is_at_its_path() and recovery.is_there(self.folder, self.name):
            self.journal = Journal(journal_path(self.folder, self.name))
