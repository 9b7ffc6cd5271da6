"""The knowledge bases that the service has open, each opened once."""

import threading

from ingest.knowledge_bases import KnowledgeBaseSummary, list_knowledge_bases
from ingest.settings import StoreOptions
from ingest.store import EmbedderLike, KnowledgeBase
from llm.rerank import Reranker
from rag.retriever import HybridRetriever
from rag.selection import RetrievalOptions


class EmptyKnowledgeBase(Exception):
    """Nothing has been ingested into it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"knowledge base {name!r} is empty: run `groundwell ingest FOLDER`")


class Library:
    """Opens knowledge bases by name. Its methods block; call them from a worker thread."""

    def __init__(
        self,
        store: StoreOptions,
        embedder: EmbedderLike,
        *,
        k: int,
        options: RetrievalOptions = RetrievalOptions(),  # noqa: B008 (frozen)
        reranker: Reranker | None = None,
    ) -> None:
        self.embedder, self._store, self._k = embedder, store, k
        self._options, self._reranker = options, reranker
        self._open: dict[str, KnowledgeBase] = {}
        self._lock = threading.Lock()

    def retriever(self, name: str) -> HybridRetriever:
        """A retriever of a knowledge base. Raises UnknownKnowledgeBase, EmptyKnowledgeBase, EmbedderMismatch."""
        with self._lock:
            if name not in self._open:
                self._open[name] = KnowledgeBase.open(self._store.path, name, self.embedder)
            knowledge_base = self._open[name]
        if knowledge_base.count()[1] == 0:
            raise EmptyKnowledgeBase(name)
        return HybridRetriever(
            knowledge_base=knowledge_base,
            embedder=self.embedder,
            k=self._k,
            options=self._options,
            reranker=self._reranker,
        )

    def list(self) -> list[KnowledgeBaseSummary]:
        """All knowledge bases of the store, by name."""
        return list_knowledge_bases(self._store.path)

    def close(self) -> None:
        """Close what is open."""
        for knowledge_base in self._open.values():
            knowledge_base.close()
