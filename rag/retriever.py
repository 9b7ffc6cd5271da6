"""The passages for a question: a dense and a lexical leg at the same time, fused into one score in [0, 1]."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, Field

from ingest.batches import in_batches
from ingest.decode import storable
from ingest.resident import unit
from ingest.store import KnowledgeBase
from ingest.terms import terms
from llm.rerank import Reranker
from rag.expected import ASKING
from rag.likeness import Seen
from rag.neighbours import widened
from rag.questions import embed_question
from rag.selection import Candidate, RetrievalOptions, spread
from rag.statement import FUNCTION_WORDS, HAN, stem

DEPTH, LEAST_DEPTH = 4, 40
"""Candidates of each leg for one passage wanted, and at least: what one leg ranks low may be lifted by the other."""
DEEPEST = 1000
"""Candidates of each leg at most, where those before them said nearly the same."""
SPARE = 2
"""Of so many times as many candidates as are wanted the scores are exact, as some may say nearly the same."""
SCORE_DIGITS = 4
KANA = re.compile(r"[\u3041-\u30ff]")
NO_WORD = "xqvzjxqvzj"
"""Weighs what every word weighs that no document holds."""

Filter = Mapping[str, Any]
Scores = dict[str, float]


@dataclass(frozen=True)
class _Search:
    """One search, checked."""

    query: str
    k: int
    threshold: float
    filter: Filter | None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"a search for {self.k} passages finds nothing: ask for 1 or more")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"a score is in [0, 1]; a threshold of {self.threshold} is not")


class HybridRetriever(BaseRetriever):
    """Finds the `k` best chunks of a knowledge base, best first, with `metadata["score"]` in [0, 1], higher is better.

    The score is made of a chunk's cosine similarity and of how much of the question's terms it holds, weighed by what
    was measured on this knowledge base: `ingest/relevance.py` says how, and what the bar at 0.5 is. With a reranker it
    is the reranker's, which has its border between relevant and not at 0.5 too.

    A call may say otherwise: `ainvoke(question, k=3, score_threshold=0.5, filter={"year": {"$gte": 2024}})`. `filter`
    takes what `ingest.metadata.where` does and holds for both legs. Nothing is found where no chunk meets it, or none
    reaches the threshold. `k` may be more than there are. Raises ValueError for a `k` below 1, a threshold outside
    [0, 1] and a filter that cannot be read.

    Chunks that say nearly the same (`rag.likeness`) take one place. A question longer than the embedder reads is
    searched for as a whole (`rag.questions`).
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    knowledge_base: KnowledgeBase
    embedder: Any
    k: int = Field(5, ge=1)
    options: RetrievalOptions = RetrievalOptions()
    reranker: Reranker | None = None
    """Reads the best candidates, which get its scores."""

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        score_threshold: float | None = None,
        filter: Filter | None = None,
    ) -> list[Document]:
        search = self._checked(query, k, score_threshold, filter)
        (vector, dense), lexical = await asyncio.gather(
            asyncio.to_thread(self._dense, search), asyncio.to_thread(self._lexical, search, self._depth(search))
        )
        found = await asyncio.to_thread(self._candidates, search, vector, dense, lexical)
        if self.reranker and found:
            found = _reranked(found, await self.reranker.ascore(search.query, _texts(found)))
        return await asyncio.to_thread(self._passages, search, found)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        score_threshold: float | None = None,
        filter: Filter | None = None,
    ) -> list[Document]:
        search = self._checked(query, k, score_threshold, filter)
        vector, dense = self._dense(search)
        found = self._candidates(search, vector, dense, self._lexical(search, self._depth(search)))
        if self.reranker and found:
            found = _reranked(found, self.reranker.score(search.query, _texts(found)))
        return self._passages(search, found)

    def relevances(self, query: str, texts: Sequence[str]) -> list[float]:
        """How near each text is to the query on the scale of the score, as if it were a chunk; words count once and in
        any form. It embeds the texts, so it takes time."""
        query = storable(query)
        vector, vectors = embed_question(query, self.embedder), self.embedder.embed_documents(list(texts))
        weights = self.knowledge_base.relevance().for_question(query, self.embedder)
        rarity = {stem(term): weight for term, weight in self.knowledge_base.term_weights(query).items()}
        held = [sum(rarity.get(term, 0) for term in set(map(stem, terms(text)))) for text in texts]
        covered = [weight / (sum(rarity.values()) or 1) for weight in held]
        return [
            weights.relevance(float(unit(vector) @ unit(one)), share)
            for one, share in zip(vectors, covered, strict=True)
        ]

    def similarities(self, query: str, texts: Sequence[str]) -> list[float]:
        """The cosine of the query to each text, in [-1, 1]. It embeds the texts, so it takes time."""
        vector = unit(embed_question(storable(query), self.embedder))
        return [float(vector @ unit(one)) for one in self.embedder.embed_documents(list(texts))]

    def rarities(self, query: str) -> dict[str, float]:
        """The weight of each of the query's words, by stem, that say what is asked for; nothing where no document holds
        a function word of its language, which the embedder may read."""
        is_chinese = HAN.search(query) and not KANA.search(query)
        rarity = self.knowledge_base.term_weights(f"{storable(query)} {NO_WORD} {'的' if is_chinese else ''}")
        unknown = rarity.pop(NO_WORD)
        asking = {term for term in rarity if term in FUNCTION_WORDS or ASKING.fullmatch(term)}
        if all(rarity[term] == unknown for term in asking):
            return {}
        said = sorted((term for term in rarity if term not in asking), key=lambda term: -rarity[term])
        return {stem(term): rarity[term] for term in said}

    def _checked(self, query: str, k: int | None, threshold: float | None, filter: Filter | None) -> _Search:
        wanted = self.k if k is None else k
        return _Search(
            storable(query), wanted, self.options.score_threshold if threshold is None else threshold, filter
        )

    def _wanted(self, search: _Search) -> int:
        """Candidates that are different from each other: more than passages where something chooses among them."""
        read = self.options.rerank_candidates if self.reranker else 0
        return max(read, search.k * (DEPTH if self.options.diversity else 1))

    def _depth(self, search: _Search) -> int:
        return max(LEAST_DEPTH, DEPTH * self._wanted(search))

    def _dense(self, search: _Search) -> tuple[list[float], Scores]:
        vector = embed_question(search.query, self.embedder)
        return vector, dict(self.knowledge_base.dense(vector, self._depth(search), search.filter))

    def _lexical(self, search: _Search, depth: int) -> Scores:
        return dict(self.knowledge_base.lexical(search.query, depth, search.filter))

    def _candidates(self, search: _Search, vector: list[float], dense: Scores, lexical: Scores) -> list[Candidate]:
        """The best of what the legs have found, and, where much of that says the same, of what they find deeper."""
        wanted, depth = self._wanted(search), self._depth(search)
        least = 0.0 if self.reranker else search.threshold
        while True:
            scores = self._scores(search, vector, dense, lexical)
            good = {id_: score for id_, score in scores.items() if round(score, SCORE_DIGITS) >= least}
            found = self._different(good, wanted)
            has_more = len(good) == len(scores) and max(len(dense), len(lexical)) >= depth
            if len(found) >= wanted or not has_more or depth >= DEEPEST:
                return found
            depth *= DEPTH
            dense = dict(self.knowledge_base.dense(vector, depth, search.filter))
            lexical = self._lexical(search, depth)

    def _scores(self, search: _Search, vector: list[float], dense: Scores, lexical: Scores) -> Scores:
        """Of what the legs have found, without what cannot be among the best.

        A chunk that only the lexical leg has found is no nearer to the question than the last of the dense leg's. One
        whose score would not do even there is left out before its vector is read, which takes longer than all else.
        """
        ids = [*(dense | lexical)]
        coverages = dict(zip(ids, self.knowledge_base.coverages(search.query, ids, lexical), strict=True))
        weights = self.knowledge_base.relevance().for_question(search.query, self.embedder)
        scores = {id_: weights.relevance(similarity, coverages[id_]) for id_, similarity in dense.items()}
        best = nlargest(SPARE * self._wanted(search), scores.values())
        least = best[-1] if len(best) == SPARE * self._wanted(search) else 0.0
        farthest = min(dense.values(), default=1.0)
        rest = [id_ for id_ in lexical if id_ not in dense and weights.relevance(farthest, coverages[id_]) >= least]
        similarities = self.knowledge_base.similarities(vector, rest)
        return scores | {id_: weights.relevance(s, coverages[id_]) for id_, s in zip(rest, similarities, strict=True)}

    def _different(self, scores: Scores, wanted: int) -> list[Candidate]:
        """The best, best first, without those that say nearly the same as a better one."""
        seen, found = Seen(), list[Candidate]()
        for ids in in_batches(sorted(scores, key=lambda id_: (-scores[id_], id_)), wanted):
            documents = self.knowledge_base.chunks(ids)
            found += [Candidate(one, scores[str(one.id)]) for one in documents if seen.take(one.page_content)]
            if len(found) >= wanted:
                break
        return found[:wanted]

    def _passages(self, search: _Search, candidates: list[Candidate]) -> list[Document]:
        chosen = [one for one in candidates if round(one.score, SCORE_DIGITS) >= search.threshold]
        if self.options.diversity:
            vectors = self.knowledge_base.vectors([str(candidate.document.id) for candidate in chosen])
            chosen = spread(chosen, vectors, search.k, diversity=self.options.diversity)
        passages = [candidate.document for candidate in chosen[: search.k]]
        for passage, candidate in zip(passages, chosen, strict=False):
            passage.metadata["score"] = round(candidate.score, SCORE_DIGITS)
        width = self.options.neighbours
        return widened(passages, self.knowledge_base, width) if width else passages


def _texts(candidates: list[Candidate]) -> list[str]:
    return [candidate.document.page_content for candidate in candidates]


def _reranked(candidates: list[Candidate], scores: list[float]) -> list[Candidate]:
    """The candidates with new scores, best first."""
    pairs = zip(candidates, scores, strict=True)
    return sorted((Candidate(one.document, score) for one, score in pairs), key=lambda one: -one.score)
