"""LangChain's `VectorStore` on a knowledge base: texts from anywhere are added, found and deleted by their ids."""

import hashlib
import json
import logging
import uuid
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from ingest.batches import in_batches
from ingest.decode import SURROGATE, storable
from ingest.embedder import EmbedderLike
from ingest.imprint import ADDED
from ingest.journal import Journal
from ingest.metadata import SPAN, flatten
from ingest.report import first_of

if TYPE_CHECKING:
    from ingest.prepared import PreparedDocument
    from ingest.writer import Writer

BATCH = 1000
"""Texts embedded and written at a time."""

log = logging.getLogger(__name__)


class LangChainVectorStore(VectorStore):
    """LangChain's methods, all on those of `KnowledgeBase`, whose file they would make too long.

    A text that is added is a document of its own: no ingest of a folder takes it out. One that is longer than the
    embedder reads becomes several chunks, which are found one by one, and deleted together by the text's id. The
    asynchronous methods run these on LangChain's threads. Scores are cosine similarities, those below 0 told as 0.
    """

    embedder: EmbedderLike
    journal: Journal

    @abstractmethod
    def dense(self, vector: list[float], k: int, where: Mapping[str, Any] | None = None) -> list[tuple[str, float]]:
        """The `k` nearest chunks."""

    @abstractmethod
    def stored(self, ids: Iterable[str]) -> dict[str, Document]:
        """Chunks by id."""

    @abstractmethod
    def vectors(self, ids: list[str]) -> dict[str, Any]:
        """Their vectors."""

    @abstractmethod
    def writing(self) -> AbstractContextManager["Writer"]:
        """Be the one writer."""

    @classmethod
    @abstractmethod
    def open(
        cls,
        folder: Path,
        name: str,
        embedder: EmbedderLike | Embeddings,
        *,
        create: bool = False,
        rebuild: bool = False,
    ) -> Self:
        """Open a knowledge base, or make it."""

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: EmbedderLike | Embeddings,
        metadatas: list[dict] | None = None,
        *,
        ids: list[str] | None = None,
        folder: Path | None = None,
        name: str = "default",
        **kwargs: Any,
    ) -> Self:
        """LangChain's way to open a knowledge base, made when it is not there, and to add texts to it.

        `folder`: by default that of the settings.
        """
        from ingest.settings import StoreOptions

        knowledge_base = cls.open(folder or StoreOptions().path, name, embedding, create=True)
        knowledge_base.add_texts(texts, metadatas, ids=ids, **kwargs)
        return knowledge_base

    @property
    def embeddings(self) -> Embeddings:
        """The embedder."""
        return cast(Embeddings, self.embedder)

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts, each in the place of what had its id; without an id it gets a new one. Returns the ids.

        A text of white space only is not added, which is logged, and its id is not returned; half a surrogate pair
        becomes U+FFFD, and NUL is taken out. Metadata are stored as `ingest.metadata.flatten` says; what it leaves out
        is logged. Raises AlreadyWriting, and ValueError for an id with half a surrogate pair.
        """
        texts = list(texts)
        named = [id_ or uuid.uuid4().hex for id_ in ids] if ids is not None else [uuid.uuid4().hex for _ in texts]
        abouts = metadatas if metadatas is not None else [{} for _ in texts]
        if not len(texts) == len(named) == len(abouts):
            raise ValueError(f"{len(texts)} texts, but {len(named)} ids and {len(abouts)} metadatas")
        last = {id_: (storable(text), about) for id_, text, about in zip(named, texts, abouts, strict=True)}
        empty = _checked({id_: text for id_, (text, _) in last.items()})
        documents = [self._prepared(text, about, id_) for id_, (text, about) in last.items() if id_ not in empty]
        places = ((document, index) for document in documents for index in range(len(document.chunks)))
        with self.writing() as writer:
            replaced = self.journal.known(named)
            for batch in in_batches(places, BATCH):
                writer.add(batch)
                for document, index in batch:
                    if index == len(document.chunks) - 1:
                        writer.commit(document)
            for id_ in empty:
                writer.remove(ADDED + id_)
            self.journal.remove_chunks(replaced)
            writer.sweep()
        return [id_ for id_ in named if id_ not in empty]

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete texts by their ids, and single chunks by theirs; without `ids` everything.

        What came from a file comes back when its folder is ingested again. Raises AlreadyWriting.
        """
        with self.writing() as writer:
            if ids is None:
                for document in self.journal.documents():
                    writer.remove(document.source)
            else:
                added = [id_ for id_ in ids if self.journal.document(ADDED + id_)]
                for id_ in added:
                    writer.remove(ADDED + id_)
                self.journal.remove_chunks(set(ids).difference(added))
            writer.sweep()
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Texts and chunks by their ids; what is not there is left out. A text in several chunks gives all of them."""
        wanted = [chunk for id_ in ids for chunk in (list(self.journal.ids(ADDED + id_)) or [id_])]
        return list(self._named(wanted).values())

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """The `k` nearest chunks, best first; `filter` takes what `ingest.metadata.where` does."""
        return [document for document, _ in self.similarity_search_with_score(query, k, **kwargs)]

    def similarity_search_with_score(self, query: str, k: int = 4, **kwargs: Any) -> list[tuple[Document, float]]:
        """The `k` nearest chunks with their scores in [0, 1], the higher the better."""
        return self._scored(self.embedder.embed_query(storable(query)), k, **kwargs)

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> list[Document]:
        """The `k` chunks nearest to a vector."""
        return [document for document, _ in self._scored(embedding, k, **kwargs)]

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """`k` of the `fetch_k` nearest chunks that are also unlike each other."""
        vector = self.embedder.embed_query(storable(query))
        return self.max_marginal_relevance_search_by_vector(vector, k, fetch_k, lambda_mult, **kwargs)

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """The same for a vector."""
        import numpy
        from langchain_core.vectorstores.utils import maximal_marginal_relevance

        ids = [id_ for id_, _ in self._nearest_ids(embedding, fetch_k, **kwargs)]
        vectors = self.vectors(ids)
        there = [id_ for id_ in ids if id_ in vectors]
        chosen = maximal_marginal_relevance(numpy.array(embedding), [vectors[id_] for id_ in there], lambda_mult, k)
        return list(self._named(there[index] for index in chosen).values())

    def _select_relevance_score_fn(self) -> Any:
        return lambda score: score

    def _scored(self, vector: list[float], k: int, **kwargs: Any) -> list[tuple[Document, float]]:
        nearest = dict(self._nearest_ids(vector, k, **kwargs))
        return [(document, max(0.0, nearest[id_])) for id_, document in self._named(nearest).items()]

    def _nearest_ids(
        self, vector: list[float], k: int, filter: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> list[tuple[str, float]]:
        if kwargs:
            raise TypeError(f"unknown options of a search: {', '.join(kwargs)}; there are k and filter")
        if k < 1:
            raise ValueError(f"a search for {k} chunks finds nothing: ask for 1 or more")
        return self.dense(vector, k, where=filter)

    def _named(self, ids: Iterable[str]) -> dict[str, Document]:
        """The chunks in order; one that is all of an added text is called as that text was."""
        ids = list(ids)
        stored = self.stored(ids)
        for id_, source in self.journal.whole(stored).items():
            stored[id_].id = source.removeprefix(ADDED)
        return {id_: stored[id_] for id_ in ids if id_ in stored}

    def _prepared(self, text: str, metadata: Mapping[str, Any], id_: str) -> "PreparedDocument":
        from ingest.document import LoadedDocument
        from ingest.prepared import PreparedDocument
        from ingest.split import CHARACTERS_PER_TOKEN, Chunk, split

        whole = Chunk(text, 0, len(text), None, None, "")
        limit = self.embedder.max_tokens
        fits = len(text) <= limit * CHARACTERS_PER_TOKEN and len(self.embedder.offsets(text)) <= limit
        chunks = [whole] if fits else split(LoadedDocument(id_, text), self.embedder.offsets, limit)
        flat, dropped = flatten(metadata, reserved=frozenset() if fits else SPAN)
        if dropped:
            log.warning("metadata of %r that Chroma cannot hold is left out: %s", id_, ", ".join(dropped))
        content_hash = hashlib.sha256(json.dumps([text, flat]).encode()).hexdigest()
        return PreparedDocument(ADDED + id_, content_hash, tuple(chunks), metadata=flat)


def _checked(texts: Mapping[str, str]) -> set[str]:
    """The ids of texts that say nothing, which are logged. Raises ValueError for an id that cannot be stored."""
    if torn := [id_ for id_ in texts if SURROGATE.search(id_)]:
        raise ValueError(f"the id {torn[0]!r} has half a surrogate pair, which no store keeps: choose another")
    empty = {id_ for id_, text in texts.items() if not text.strip()}
    if empty:
        log.warning("texts of white space only are not added: %s", first_of(sorted(empty)))
    return empty
