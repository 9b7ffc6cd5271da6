"""`KnowledgeBase`: one Chroma collection with its embedder's fingerprint, and the journal beside it; reading side."""

import hashlib
import json
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from langchain_core.documents import Document

from ingest.journal import Journal, StoredDocument, in_batches
from ingest.lock import writer_lock

if TYPE_CHECKING:
    from chromadb.api import ClientAPI
    from chromadb.api.models.Collection import Collection

    from ingest.writer import Writer

LEGAL_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{1,61}[a-zA-Z0-9]")
"""Chroma allows up to 512 characters; 63 also fit a file's name and a Chroma server of before 1.0."""
REOPEN_SECONDS = 2.0
"""A reader loads the index anew this often at most while another process writes; 10^5 chunks take about a second."""
RETRY_AFTER_SECONDS = (0.0, 0.05, 0.2)
LOOKED_PAST = 1000
"""Chunks of unfinished documents that a query looks past at most."""

_opening = threading.Lock()
Result = TypeVar("Result")


class EmbedderLike(Protocol):
    """What a knowledge base needs of an embedder; `llm.embeddings.Embedder` is one."""

    @property
    def fingerprint(self) -> dict[str, str]:
        """What makes two vectors comparable; `model` is the name shown to people."""

    @property
    def max_tokens(self) -> int:
        """Tokens of a document's own text that fit."""

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The character span of each token."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector for each text."""

    def embed_query(self, text: str) -> list[float]:
        """The vector of a question."""


class UnknownKnowledgeBase(Exception):
    """There is no knowledge base of that name."""

    def __init__(self, name: str, known: list[str]) -> None:
        others = f"there are: {', '.join(known)}" if known else "there is none yet"
        super().__init__(f"no knowledge base {name!r} ({others}); make it with `groundwell ingest FOLDER`")
        self.name, self.known = name, known


class EmbedderMismatch(Exception):
    """The knowledge base was made with another embedder, whose vectors cannot be compared with this one's."""

    def __init__(self, name: str, stored: dict[str, str], given: dict[str, str]) -> None:
        command = f"groundwell ingest FOLDER --knowledge-base {shlex.quote(name)} --rebuild"
        super().__init__(
            f"knowledge base {name!r} was made with {_shown(stored)}, but the embedder is now {_shown(given)}:"
            f" set the first one again, or re-index with `{command}`"
        )
        self.name, self.stored, self.given = name, stored, given


@dataclass(frozen=True)
class KnowledgeBaseSummary:
    """One line of the list of knowledge bases."""

    name: str
    documents: int
    chunks: int
    embedder: str


def list_knowledge_bases(folder: Path) -> list[KnowledgeBaseSummary]:
    """The knowledge bases below `folder`, by name."""
    if not (folder / "chroma").is_dir():
        return []
    found = []
    for collection in _client(folder).list_collections():
        journal = Journal(folder / f"{collection.name}.sqlite3")
        documents, chunks = journal.count()
        journal.close()
        about = collection.metadata or {}
        embedder = json.loads(about["fingerprint"])["model"]
        found.append(KnowledgeBaseSummary(about["knowledge_base"], documents, chunks, embedder))
    return sorted(found, key=lambda summary: summary.name)


class KnowledgeBase:
    """A named set of documents. Any thread may call any method; reading never waits for the writer.

    What another process has committed is seen within REOPEN_SECONDS. Chunks of a document that is not yet complete
    are never returned.
    """

    def __init__(self, folder: Path, name: str, embedder: EmbedderLike) -> None:
        """Use `open`."""
        self.folder, self.name, self.embedder = folder, name, embedder
        self.journal = Journal(folder / f"{collection_name(name)}.sqlite3")
        self._lock = threading.Lock()
        self._is_writing = False
        self._load()

    @classmethod
    def open(
        cls, folder: Path, name: str, embedder: EmbedderLike, *, create: bool = False, rebuild: bool = False
    ) -> "KnowledgeBase":
        """Open the knowledge base `name` below `folder`.

        `create` makes it when it is not there; `rebuild` makes it anew, empty, for this embedder. Raises
        UnknownKnowledgeBase, EmbedderMismatch and, for `rebuild`, AlreadyWriting.
        """
        known = {summary.name for summary in list_knowledge_bases(folder)}
        if name not in known and not create:
            raise UnknownKnowledgeBase(name, sorted(known))
        if name not in known:
            _create(folder, name, embedder)
        elif rebuild:
            _rebuild(folder, name, embedder)
        return cls(folder, name, embedder)

    def close(self) -> None:
        """Close the journal. Chroma's part closes when nothing refers to it any more."""
        self.journal.close()

    def count(self) -> tuple[int, int]:
        """The numbers of documents and of chunks."""
        return self.journal.count()

    def documents(self) -> list[StoredDocument]:
        """All documents, by source."""
        return self.journal.documents()

    def dense(self, vector: list[float], k: int) -> list[tuple[str, float]]:
        """The `k` nearest chunks: id and cosine similarity in [-1, 1], best first."""
        found = self._nearest(vector, k)
        # Chunks of unfinished documents took places; how many is known only afterwards, and is nearly always none.
        if len(found) < k and (pending := len(self.journal.pending())):
            found = self._nearest(vector, k + min(pending, LOOKED_PAST))[:k]
        return found

    def lexical(self, query: str, k: int) -> list[tuple[str, float]]:
        """The `k` best chunks that hold any of the query's terms: id and BM25 score (> 0), best first."""
        return self.journal.search(query, k)

    def chunks(self, ids: list[str]) -> list[Document]:
        """The chunks in the order of `ids`; one that has been removed in the meantime is left out.

        Metadata: source, start, end (characters of the document's text), heading; page or line where there is one.
        """
        rows: dict[str, Document] = {}
        for some in in_batches(dict.fromkeys(ids), self._batch):
            got = self.ask(partial(_get, some, ["documents", "metadatas"]))
            for id_, text, about in zip(got["ids"], got["documents"], got["metadatas"], strict=True):
                rows[id_] = Document(id=id_, page_content=text, metadata=dict(about))
        return [rows[id_] for id_ in ids if id_ in rows]

    def similarities(self, vector: list[float], ids: list[str]) -> list[float]:
        """Cosine similarity in [-1, 1] of each chunk to `vector`; -1 for one that has been removed."""
        import numpy

        stored = self.vectors(ids)
        query = numpy.asarray(vector) / (numpy.linalg.norm(vector) or 1)
        return [
            float(query @ stored[id_] / (numpy.linalg.norm(stored[id_]) or 1)) if id_ in stored else -1 for id_ in ids
        ]

    def vectors(self, ids: list[str]) -> dict[str, Any]:
        """The stored vectors, as numpy arrays, of those chunks that are there."""
        stored: dict[str, Any] = {}
        for some in in_batches(dict.fromkeys(ids), self._batch):
            got = self.ask(partial(_get, some, ["embeddings"]))
            stored |= dict(zip(got["ids"], got["embeddings"], strict=True))
        return stored

    @contextmanager
    def writing(self) -> Iterator["Writer"]:
        """Be the one writer. Raises AlreadyWriting, which names the other, at once."""
        from ingest.writer import Writer

        with writer_lock(self.folder / f"{collection_name(self.name)}.lock", self.name):
            self._load()
            self._is_writing = True
            try:
                yield Writer(self, self._collection, self._batch)
            finally:
                self._generation, self._is_writing = self.journal.generation(), False

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

    def _nearest(self, vector: list[float], k: int) -> list[tuple[str, float]]:
        got = self.ask(lambda collection: collection.query(vector, n_results=k, include=["distances"]))
        known = self.journal.known(got["ids"][0])
        pairs = zip(got["ids"][0], (got["distances"] or [[]])[0], strict=True)
        return [(id_, max(-1.0, min(1.0, 1 - distance))) for id_, distance in pairs if id_ in known]

    def _current(self) -> "Collection":
        if self._outdated or (time.monotonic() - self._loaded > REOPEN_SECONDS and self._is_behind()):
            self._load()
        return self._collection

    def _is_behind(self) -> bool:
        """Whether another process has written since the index was loaded; the writer sees what it writes itself."""
        return not self._is_writing and self.journal.generation() != self._generation

    def _load(self) -> None:
        """Load the index as it is on disk now; a Chroma client never sees what another process has written since."""
        with self._lock:
            generation = self.journal.generation()
            client = _client(self.folder)
            self._collection = client.get_collection(collection_name(self.name), embedding_function=None)
            self._batch = client.get_max_batch_size()
            self._generation, self._loaded, self._outdated = generation, time.monotonic(), False
        stored = json.loads(self._collection.metadata["fingerprint"])
        if stored != self.embedder.fingerprint:
            raise EmbedderMismatch(self.name, stored, self.embedder.fingerprint)


def _get(ids: list[str], include: list[Any], collection: "Collection") -> Any:
    return collection.get(ids=ids, include=include)


def collection_name(name: str) -> str:
    """The Chroma collection of a knowledge base; names that Chroma would refuse get a hash instead."""
    if LEGAL_NAME.fullmatch(name) and ".." not in name and not name.startswith("kb-"):
        return name
    return f"kb-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _client(folder: Path) -> "ClientAPI":
    """A client with an index of its own. Never close it: `close` stops every client of that folder."""
    import chromadb
    from chromadb.api.shared_system_client import SharedSystemClient
    from chromadb.config import Settings

    with _opening:
        SharedSystemClient.clear_system_cache()
        return chromadb.PersistentClient(str(folder / "chroma"), Settings(anonymized_telemetry=False))


def _create(folder: Path, name: str, embedder: EmbedderLike) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _client(folder).get_or_create_collection(
        collection_name(name),
        configuration={"hnsw": {"space": "cosine"}},
        metadata={"knowledge_base": name, "fingerprint": json.dumps(embedder.fingerprint)},
        embedding_function=None,
    )


def _rebuild(folder: Path, name: str, embedder: EmbedderLike) -> None:
    with writer_lock(folder / f"{collection_name(name)}.lock", name):
        journal = Journal(folder / f"{collection_name(name)}.sqlite3")
        journal.clear()
        _client(folder).delete_collection(collection_name(name))
        _create(folder, name, embedder)
        journal.forget(journal.pending())
        journal.close()


def _shown(fingerprint: dict[str, str]) -> str:
    return f"{fingerprint['model']} (revision {fingerprint.get('revision', 'unknown')})"
