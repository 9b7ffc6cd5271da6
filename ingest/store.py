"""`KnowledgeBase`: one Chroma collection with its embedder's fingerprint, and the journal beside it; reading side."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import chain
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from ingest import index, recovery
from ingest.batches import in_batches
from ingest.collection import drop_others, fingerprint, journal_path, lock_path
from ingest.disk import told_plainly
from ingest.embedder import EmbedderLike, adapted
from ingest.journal import Journal, StoredDocument
from ingest.knowledge_bases import EmbedderMismatch, make, start_over, unknown
from ingest.lexical import DamagedIndex
from ingest.lock import AlreadyWriting, writer_lock
from ingest.metadata import OF_A_DOCUMENT, with_place
from ingest.metadata import where as chroma_where
from ingest.vector_store import LangChainVectorStore

if TYPE_CHECKING:
    from chromadb.api.models.Collection import Collection

    from ingest.writer import Writer

REOPEN_SECONDS = 2.0
"""A reader loads the index anew this often at most while another process writes; 10^5 chunks take about a second."""
RETRY_AFTER_SECONDS = (0.0, 0.05, 0.2)
LOOKED_PAST = 1000
"""Chunks of unfinished documents that a query looks past at most."""
LEAST_ROWS = 1000
"""Rows after which the index files are written, or a twentieth of all if that is more: each load takes as many out of
Chroma's log (2,000 a second), and writing takes time with the size of the whole."""
DEEPER = 4
"""So many times as many candidates are looked at when too few of them meet a condition."""

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class KnowledgeBase(LangChainVectorStore):
    """A named set of documents. Any thread may call any method; reading never waits for the writer.

    What another process has committed is seen within REOPEN_SECONDS. Chunks of a document that is not yet complete
    are never returned.
    """

    def __init__(self, folder: Path, name: str, embedder: EmbedderLike) -> None:
        """Use `open`."""
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
        self.journal.close()

    def count(self) -> tuple[int, int]:
        """The numbers of documents and of chunks."""
        return self.journal.count()

    def documents(self) -> list[StoredDocument]:
        """All documents, by source."""
        return self.journal.documents()

    def dense(self, vector: list[float], k: int, where: Mapping[str, Any] | None = None) -> list[tuple[str, float]]:
        """The `k` nearest chunks, of those whose metadata meet `where`: id and cosine similarity, best first."""
        found = self._nearest(vector, k, where)
        # Chunks of unfinished documents took places; how many is known only afterwards, and is nearly always none.
        if len(found) < k and (pending := len(self.journal.pending())):
            found = self._nearest(vector, k + min(pending, LOOKED_PAST), where)[:k]
        return found

    def lexical(self, query: str, k: int, where: Mapping[str, Any] | None = None) -> list[tuple[str, float]]:
        """The `k` best chunks that hold any of the query's terms and meet `where`: id and BM25 score, best first."""
        if not where:
            return self._search(query, k)
        depth = k
        while True:
            candidates = self._search(query, depth)
            meeting = self._meeting([id_ for id_, _ in candidates], where)
            found = [(id_, score) for id_, score in candidates if id_ in meeting]
            if len(found) >= k or len(candidates) < depth:
                return found[:k]
            depth *= DEEPER

    def chunks(self, ids: list[str]) -> list[Document]:
        """The chunks in the order of `ids`; one that has been removed in the meantime is left out.

        Metadata: source, start, end (characters of the document's text), heading; page, slide, sheet, cell or line
        where there is one; and what the document brought with it.
        """
        stored = self.stored(ids)
        nameless = [id_ for id_ in stored if not isinstance(stored[id_].metadata.get("source"), str)]
        sources = self.journal.sources(nameless)
        gone = {id_ for id_ in nameless if id_ not in sources}
        return [with_place(stored[id_], sources.get(id_)) for id_ in ids if id_ in stored and id_ not in gone]

    def stored(self, ids: Iterable[str]) -> dict[str, Document]:
        """Those chunks that are there, with the metadata as they are stored."""
        rows: dict[str, Document] = {}
        for got in self._got(ids, ["documents", "metadatas"]):
            for id_, text, about in zip(got["ids"], got["documents"], got["metadatas"], strict=True):
                shown = {key: value for key, value in (about or {}).items() if key != OF_A_DOCUMENT}
                rows[id_] = Document(id=id_, page_content=text or "", metadata=shown)
        return rows

    def similarities(self, vector: list[float], ids: list[str]) -> list[float]:
        """Cosine similarity in [-1, 1] of each chunk to `vector`; -1 for one that has been removed."""
        import numpy

        stored, query = self.vectors(ids), numpy.asarray(vector) / (numpy.linalg.norm(vector) or 1)
        return [
            float(query @ stored[id_] / (numpy.linalg.norm(stored[id_]) or 1)) if id_ in stored else -1 for id_ in ids
        ]

    def vectors(self, ids: list[str]) -> dict[str, Any]:
        """The stored vectors, as numpy arrays, of those chunks that are there."""
        pairs = (zip(got["ids"], got["embeddings"], strict=True) for got in self._got(ids, ["embeddings"]))
        return dict(chain.from_iterable(pairs))

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

    def _nearest(self, vector: list[float], k: int, where: Mapping[str, Any] | None) -> list[tuple[str, float]]:
        meeting = chroma_where(where)
        got = self.ask(lambda collection: collection.query(vector, n_results=k, where=meeting, include=["distances"]))
        known = self.journal.known(got["ids"][0])
        pairs = zip(got["ids"][0], (got["distances"] or [[]])[0], strict=True)
        return [(id_, max(-1.0, min(1.0, 1 - distance))) for id_, distance in pairs if id_ in known]

    def _meeting(self, ids: list[str], where: Mapping[str, Any]) -> set[str]:
        return {id_ for got in self._got(ids, [], where=chroma_where(where)) for id_ in got["ids"]}

    def _got(self, ids: Iterable[str], include: list[Any], *, where: Any = None) -> Iterator[Any]:
        for some in in_batches(dict.fromkeys(ids), self._batch):
            yield self.ask(methodcaller("get", ids=some, where=where, include=include))

    def _search(self, query: str, k: int) -> list[tuple[str, float]]:
        try:
            return self.journal.search(query, k)
        except DamagedIndex:
            if self.journal.lexical_is_behind():
                self._wrote_last = False
                with self.writing():  # mends it first
                    pass
        return self.journal.search(query, k)

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

    def _current(self) -> "Collection":
        if self._outdated:
            self._load()
        elif (self.is_empty or time.monotonic() - self._loaded > self._pause) and self._is_behind():
            self._load(wait=False)
        return self.collection

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
