"""The writing side of a knowledge base: an order of steps that can be killed after any of them."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingest.journal import StoredChunk, StoredDocument, in_batches
from ingest.split import Chunk

if TYPE_CHECKING:
    from chromadb.api.models.Collection import Collection

    from ingest.store import KnowledgeBase


@dataclass(frozen=True)
class PreparedDocument:
    """A document cut into chunks, not yet stored."""

    source: str
    content_hash: str
    chunks: tuple[Chunk, ...]
    problems: tuple[str, ...] = ()

    def stored_chunk(self, index: int) -> StoredChunk:
        """Chunk `index` as the journal keeps it. Its id names the file, its content and the place in it, so that equal
        files and equal paragraphs get different ids, and a changed file never reuses one."""
        text = self.chunks[index].text
        key = f"{self.source}\x00{self.content_hash}\x00{index}".encode()
        return StoredChunk(hashlib.sha256(key).hexdigest()[:32], hashlib.sha256(text.encode()).digest(), text)


Place = tuple[PreparedDocument, int]
"""A chunk: its document and its number in it."""


class Writer:
    """The one who may write, from `KnowledgeBase.writing`.

    A document's chunks go to Chroma first, announced as pending, in as many batches as they need; then one SQLite
    transaction makes them the document's and its former ones pending; then those are dropped. Killed in between, the
    next run finds the vectors of what is pending and embeds none of them again; `sweep` ends with nothing pending.
    """

    def __init__(self, knowledge_base: "KnowledgeBase", collection: "Collection", batch: int) -> None:
        self._knowledge_base, self._collection, self._batch = knowledge_base, collection, batch
        self._journal = knowledge_base.journal

    def add(self, places: list[Place]) -> None:
        """Embed chunks and write them to Chroma; a text that has a vector already is not embedded again."""
        stored = [document.stored_chunk(index) for document, index in places]
        vectors = self._vectors(stored)
        self._journal.announce(stored)
        for batch in in_batches(zip(places, stored, strict=True), self._batch):
            self._collection.upsert(
                ids=[chunk.id for _, chunk in batch],
                embeddings=[vectors[chunk.digest] for _, chunk in batch],
                documents=[chunk.text for _, chunk in batch],
                metadatas=[_metadata(document.source, document.chunks[index]) for (document, index), _ in batch],
            )

    def commit(self, document: PreparedDocument) -> None:
        """Make a document whose chunks have all been added part of the knowledge base, in place of its old version."""
        about = StoredDocument(document.source, document.content_hash, len(document.chunks), document.problems)
        self._journal.replace(about, [document.stored_chunk(index) for index in range(len(document.chunks))])

    def remove(self, source: str) -> None:
        """Take a document out."""
        self._journal.remove(source)

    def sweep(self) -> None:
        """Drop everything from Chroma that belongs to no document."""
        for ids in in_batches(self._journal.pending(), self._batch):
            self._collection.delete(ids=ids)
            self._journal.forget(ids)

    def _vectors(self, chunks: Iterable[StoredChunk]) -> dict[bytes, Any]:
        import numpy

        texts = {chunk.digest: chunk.text for chunk in chunks}
        ids = self._journal.ids_by_digest(texts)
        stored = self._knowledge_base.vectors(list(ids.values()))
        vectors = {digest: stored[id_] for digest, id_ in ids.items() if id_ in stored}
        missing = [digest for digest in texts if digest not in vectors]
        embedded = self._knowledge_base.embedder.embed_documents([texts[digest] for digest in missing])
        return vectors | {digest: numpy.asarray(vector) for digest, vector in zip(missing, embedded, strict=True)}


def _metadata(source: str, chunk: Chunk) -> dict[str, str | int]:
    """Chroma stores no None, so a chunk without a page has no `page`."""
    about: dict[str, str | int] = {"source": source, "start": chunk.start, "end": chunk.end, "heading": chunk.heading}
    places = {"page": chunk.page, "line": chunk.line}
    return about | {name: number for name, number in places.items() if number is not None}
