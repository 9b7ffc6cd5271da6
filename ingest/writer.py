"""The writing side of a knowledge base: an order of steps that can be killed after any of them."""

from collections import deque
from collections.abc import Callable, Collection, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingest.batches import in_batches
from ingest.embedder import embed_in_parts
from ingest.imprint import imprint
from ingest.metadata import OF_A_CHUNK, Flat, flatten
from ingest.prepared import PreparedDocument
from ingest.rows import Failure, StoredChunk

if TYPE_CHECKING:
    from ingest.store import KnowledgeBase


Place = tuple[PreparedDocument, int]
"""A chunk: its document and its number in it."""
Vectors = dict[bytes, Any]
"""A vector for each digest of a text."""


@dataclass
class Wanted:
    """The texts of a batch of chunks, and what is known of their vectors."""

    digests: Set[bytes]
    vectors: Vectors
    """Those that are stored; `Writer.embed` adds the rest."""
    missing: dict[bytes, str]
    """Those that must be embedded, the longest first."""
    earlier: "dict[bytes, Wanted]"
    """Those that are being embedded, with another batch."""
    stored: int
    """Chunks whose vectors do not wait for this batch to be embedded."""


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
        self._recent: deque[Wanted] = deque(maxlen=2)

    def look_up(self, places: list[Place]) -> Wanted:
        """What must be embedded of these chunks; a text whose vector is stored must not.

        May run while the batch before is embedded and the one before that is written: theirs count as stored.
        """
        chunks = [document.stored_chunk(index) for document, index in places]
        texts = {chunk.digest: chunk.text for chunk in chunks}
        earlier = {digest: one for one in self._recent for digest in texts.keys() & one.digests}
        ids = self._journal.ids_by_digest(texts.keys() - earlier.keys())
        stored = self._knowledge_base.vectors(list(ids.values()))
        vectors = {digest: stored[id_] for digest, id_ in ids.items() if id_ in stored}
        missing = sorted(texts.keys() - earlier.keys() - vectors.keys(), key=lambda digest: -len(texts[digest]))
        to_embed = {digest: texts[digest] for digest in missing}
        self._recent.append(Wanted(texts.keys(), vectors, to_embed, earlier, len(chunks) - len(missing)))
        return self._recent[-1]

    def embed(self, wanted: Wanted, tell: Callable[[int], None] = lambda chunks: None) -> Vectors:
        """The vectors by digest of the text; batches are embedded in the order in which they were looked up.

        `tell` is called again and again with how many chunks more have a vector.
        """
        import numpy

        tell(wanted.stored)
        digests = {text: digest for digest, text in wanted.missing.items()}
        for some in embed_in_parts(self._knowledge_base.embedder, list(digests)) if digests else ():
            wanted.vectors.update((digests[text], numpy.asarray(vector)) for text, vector in some.items())
            tell(len(some))
        wanted.vectors.update((digest, one.vectors[digest]) for digest, one in wanted.earlier.items())
        wanted.earlier.clear()
        return wanted.vectors

    def add(self, places: list[Place], vectors: Vectors | None = None) -> None:
        """Write chunks to Chroma, with the vectors that `embed` gave for them; without these, embed them first."""
        vectors = self.embed(self.look_up(places)) if vectors is None else vectors
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


def _metadata(document: PreparedDocument, index: int) -> Any:
    chunk, of_document = document.chunks[index], imprint(document.stored(), index)
    if document.file is None:  # as it was given; the parts of a long text say which part they are
        span = {"start": chunk.start, "end": chunk.end} if len(document.chunks) > 1 else {}
        return {**document.metadata, **span, **of_document}
    brought, _ = flatten(document.metadata, reserved=OF_A_CHUNK)
    about: Flat = {"source": document.source, "start": chunk.start, "end": chunk.end, "heading": chunk.heading}
    places = {chunk.place_kind: chunk.place, "line": chunk.line}
    return brought | about | {name: place for name, place in places.items() if place is not None} | of_document
