"""The passages for a question: a dense and a lexical leg at the same time, fused into one score in [0, 1]."""

import asyncio
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict

from ingest.store import KnowledgeBase

DEPTH = 4
"""Candidates of each leg for one passage wanted: a passage that one leg ranks low may be lifted by the other."""

Scores = dict[str, float]


class HybridRetriever(BaseRetriever):
    """Finds the `k` best chunks of a knowledge base, best first, with `metadata["score"]` in [0, 1], higher is better.

    The score is how likely such a question was taken from such a chunk, from its cosine similarity and from how much of
    the question's terms it holds, by what was measured on this knowledge base: see `ingest/relevance.py`.
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
        """The best of all candidates, each with both figures: what one leg ranks low may be lifted by the other."""
        ids = [*(dense | lexical)]
        similarities = self.knowledge_base.similarities(vector, ids)
        coverages = self.knowledge_base.coverages(query, ids)
        weights = self.knowledge_base.relevance().for_question(query, self.embedder)
        scores = dict(zip(ids, map(weights.relevance, similarities, coverages), strict=True))
        documents = self.knowledge_base.chunks(sorted(scores, key=lambda id_: (-scores[id_], id_))[:k])
        for document in documents:
            document.metadata["score"] = round(scores[str(document.id)], 4)
        return documents
