"""The passages for a question: a dense and a lexical leg at the same time, fused into one score in [0, 1]."""

import asyncio
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict

from ingest.store import EmbedderLike, KnowledgeBase

DEPTH = 4
"""Candidates of each leg for one passage wanted: a passage that one leg ranks low may be lifted by the other."""
LEAST_DENSE = 0.05
"""Weight of the dense leg where the embedder knows nothing of the language, so that it still breaks ties."""

Scores = dict[str, float]


class HybridRetriever(BaseRetriever):
    """Finds the `k` best chunks of a knowledge base, best first, with `metadata["score"]` in [0, 1], higher is better.

    The score is a convex combination of the legs, each scaled from its least possible value to its best of this
    question (Bruch, Gai, Ingber 2023, "An Analysis of Fusion Functions for Hybrid Retrieval", TM2C2).
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    knowledge_base: KnowledgeBase
    embedder: Any
    k: int = 5

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        k = self.k if k is None else k
        (vector, dense), lexical = await asyncio.gather(
            asyncio.to_thread(self._dense, query, k), asyncio.to_thread(self._lexical, query, k)
        )
        return await asyncio.to_thread(self._fused, query, k, vector, dense, lexical)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        k = self.k if k is None else k
        vector, dense = self._dense(query, k)
        return self._fused(query, k, vector, dense, self._lexical(query, k))

    def _dense(self, query: str, k: int) -> tuple[list[float], Scores]:
        vector = self.embedder.embed_query(query)
        return vector, dict(self.knowledge_base.dense(vector, k * DEPTH))

    def _lexical(self, query: str, k: int) -> Scores:
        return dict(self.knowledge_base.lexical(query, k * DEPTH))

    def _fused(self, query: str, k: int, vector: list[float], dense: Scores, lexical: Scores) -> list[Document]:
        only_lexical = [id_ for id_ in lexical if id_ not in dense]
        dense |= dict(zip(only_lexical, self.knowledge_base.similarities(vector, only_lexical), strict=True))
        weight = dense_weight(query, self.embedder)
        scores = fuse(dense, lexical, weight=weight)
        best = sorted(scores, key=lambda id_: (-scores[id_], id_))[:k]
        documents = self.knowledge_base.chunks(best)
        for document in documents:
            document.metadata["score"] = round(scores[str(document.id)], 4)
        return documents


def fuse(dense: Scores, lexical: Scores, *, weight: float) -> Scores:
    """Fuse cosine similarities [-1, 1] and BM25 scores [0, ∞) into [0, 1], `weight` on the dense leg."""
    best_dense = 1 + max(dense.values(), default=0.0) or 1.0
    best_lexical = max(lexical.values(), default=0.0) or 1.0
    return {
        id_: weight * ((1 + dense.get(id_, -1.0)) / best_dense) + (1 - weight) * (lexical.get(id_, 0.0) / best_lexical)
        for id_ in dense | lexical
    }


def dense_weight(query: str, embedder: EmbedderLike) -> float:
    """The dense leg's weight in [0.05, 0.5]: half the share of the query's letters that the embedder reads as words.

    An embedder whose vocabulary lacks a language cuts it into single characters and knows little of what they mean:
    MiniLM reads English words whole and Chinese one character at a time.
    """
    spans = [(start, end) for start, end in embedder.offsets(query) if query[start:end].strip().isalnum()]
    letters = sum(end - start for start, end in spans)
    in_words = sum(end - start for start, end in spans if end - start > 1)
    return max(LEAST_DENSE, 0.5 * in_words / letters) if letters else 0.5
