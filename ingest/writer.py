"""The writing side of a knowledge base: an order of steps that can be killed after any of them."""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ingest.batches import in_batches
from ingest.imprint import imprint
from ingest.metadata import OF_A_CHUNK, Flat, flatten
from ingest.rows import Failure, StoredChunk, StoredDocument, chunk_id
from ingest.split import Chunk

if TYPE_CHECKING:
    from ingest.store import KnowledgeBase


@dataclass(frozen=True)
class PreparedDocument:
    """A document cut into chunks, not yet stored."""

    source: str
    content_hash: str
    chunks: tuple[Chunk, ...]
    problems: tuple[str, ...] = ()
    file: str | None = None
    """The file it came from: itself, or the archive or mail it is in. None: there is no file."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What is stored with each chunk besides its place."""

    def stored_chunk(self, index: int) -> StoredChunk:
        """Chunk `index` as the journal keeps it."""
        return StoredChunk.of(chunk_id(self.source, self.content_hash, index), self.chunks[index].text)

    def stored(self) -> StoredDocument:
        """The document as the journal keeps it."""
        return StoredDocument(self.source, self.content_hash, len(self.chunks), self.problems, self.file)


Place = tuple[PreparedDocument, int]
"""A chunk: its document and its number in it."""
Vectors = dict[bytes, Any]
"""A vector for each digest of a text."""
EMBEDDED_AT_ONCE = 128
"""Texts of about the same length, after which it is told how many have been."""


class Writer:
    """The one who may write, from `KnowledgeBase.writing`.

    A document's chunks go to Chroma first, announced as pending, in as many batches as they need; then one SQLite
    transaction makes them the document's and its former ones pending; then those are dropped. Killed in between, the
    next run finds the vectors of what is pending and embeds none of them again; `sweep` ends with nothing pending.
    """

    def __init__(self, knowledge_base: "KnowledgeBase", batch: int, lost: tuple[str, ...] = ()) -> None:
        """`lost`: added documents whose chunks were not in Chroma any more when this writer came."""
        self._knowledge_base, self._batch, self.lost = knowledge_base, batch, lost
        self._journal = knowledge_base.journal
        self._recent: deque[Vectors] = deque(maxlen=2)

    def embed(self, places: list[Place], tell: Callable[[int], None] = lambda chunks: None) -> Vectors:
        """The vectors of chunks, by digest of their text; a text whose vector is stored is not embedded again.

        May run while another thread still writes the last two batches: their vectors count as stored. `tell` is called
        again and again with how many chunks more have a vector.
        """
        vectors = self._vectors([document.stored_chunk(index) for document, index in places], tell)
        self._recent.append(vectors)
        return vectors

    def add(self, places: list[Place], vectors: Vectors | None = None) -> None:
        """Write chunks to Chroma, with the vectors that `embed` gave for them; without these, embed them first."""
        vectors = self.embed(places) if vectors is None else vectors
        chunks = [document.stored_chunk(index) for document, index in places]
        # An id names all that is stored with it. What a document holds must not become pending: a sweep would drop it.
        known = self._journal.known(chunk.id for chunk in chunks)
        new = [(place, chunk) for place, chunk in zip(places, chunks, strict=True) if chunk.id not in known]
        self._journal.announce(chunk for _, chunk in new)
        with self._knowledge_base.changing_index(len(new)):
            self._upsert(new, vectors)

    def _upsert(self, new: list[tuple[Place, StoredChunk]], vectors: Vectors) -> None:
        for batch in in_batches(new, self._batch):
            self._knowledge_base.collection.upsert(
                ids=[chunk.id for _, chunk in batch],
                embeddings=[vectors[chunk.digest] for _, chunk in batch],
                documents=[chunk.text for _, chunk in batch],
                metadatas=[_metadata(document, index) for (document, index), _ in batch],
            )

    def commit(self, document: PreparedDocument) -> None:
        """Make a document whose chunks have all been added part of the knowledge base, in place of its old version."""
        self._journal.replace(
            document.stored(), [document.stored_chunk(index) for index in range(len(document.chunks))]
        )

    def remove(self, source: str) -> None:
        """Take a document out."""
        self._journal.remove(source)

    def finish(
        self,
        file: str,
        content_hash: str | None,
        sources: Collection[str],
        failed: Collection[str],
        failure: Failure | None = None,
    ) -> None:
        """After the last document of a file: take out its documents that are neither in `sources` nor in `failed`.

        With a hash the file counts as read to its end, and the next run leaves it alone while its hash is the same;
        with a `failure`, while the limits are the same too.
        """
        self._journal.finish(file, content_hash, {*sources, *failed}, failure)

    def remove_file(self, file: str) -> None:
        """Take out all documents of a file."""
        self._journal.remove_file(file)

    def publish(self) -> None:
        """Let all that has been committed be found by its words, which the end of the writing does as well."""
        self._knowledge_base.publish()

    def sweep(self) -> None:
        """Drop everything from Chroma that belongs to no document."""
        for ids in in_batches(self._journal.pending(), self._batch):
            with self._knowledge_base.changing_index(len(ids)):
                self._knowledge_base.collection.delete(ids=ids)
            self._journal.forget(ids)

    def _vectors(self, chunks: list[StoredChunk], tell: Callable[[int], None]) -> Vectors:
        import numpy

        texts = {chunk.digest: chunk.text for chunk in chunks}
        vectors = {digest: recent[digest] for recent in self._recent for digest in texts.keys() & recent.keys()}
        ids = self._journal.ids_by_digest(texts.keys() - vectors.keys())
        stored = self._knowledge_base.vectors(list(ids.values()))
        vectors |= {digest: stored[id_] for digest, id_ in ids.items() if id_ in stored}
        missing = sorted((digest for digest in texts if digest not in vectors), key=lambda digest: -len(texts[digest]))
        tell(len(chunks) - len(missing))
        for digests in in_batches(missing, EMBEDDED_AT_ONCE):
            embedded = self._knowledge_base.embedder.embed_documents([texts[digest] for digest in digests])
            vectors |= {digest: numpy.asarray(vector) for digest, vector in zip(digests, embedded, strict=True)}
            tell(len(digests))
        return vectors


def _metadata(document: PreparedDocument, index: int) -> Any:
    chunk, of_document = document.chunks[index], imprint(document.stored(), index)
    if document.file is None:  # as it was given; the parts of a long text say which part they are
        span = {"start": chunk.start, "end": chunk.end} if len(document.chunks) > 1 else {}
        return {**document.metadata, **span, **of_document}
    brought, _ = flatten(document.metadata, reserved=OF_A_CHUNK)
    about: Flat = {"source": document.source, "start": chunk.start, "end": chunk.end, "heading": chunk.heading}
    places = {chunk.place_kind: chunk.place, "line": chunk.line}
    return brought | about | {name: place for name, place in places.items() if place is not None} | of_document
