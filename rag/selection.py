"""Which of the candidates become passages: how many, how good, how unlike each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.documents import Document
from pydantic import Field

from llm.options import Options


class RetrievalOptions(Options):
    """How passages are searched for; how many is `answer.retrieve`."""

    score_threshold: float = Field(0.0, ge=0, le=1, description="passages below this score are left out; the bar: 0.5")
    diversity: float = Field(
        0.0, ge=0, lt=1, description="weight of being unlike better passages (MMR); 0: relevance alone"
    )
    neighbours: int = Field(0, ge=0, le=5, description="chunks before and behind a passage that are merged into it")
    rerank: bool = Field(False, description="let the reranker read the best candidates and order them anew")
    rerank_candidates: int = Field(20, ge=1, le=1000, description="candidates that it reads for a question")


@dataclass(frozen=True)
class Candidate:
    """A chunk that may become a passage, and its score in [0, 1]."""

    document: Document
    score: float


def spread(candidates: Sequence[Candidate], vectors: Mapping[str, Any], k: int, *, diversity: float) -> list[Candidate]:
    """`k` of the candidates, in the order of choice: each the best by `(1 - diversity)` · score - `diversity` · its
    highest cosine similarity to one chosen before.

    Carbonell and Goldstein 1998, "The use of MMR, diversity-based reranking for reordering documents and producing
    summaries". `vectors` are numpy arrays by the chunks' ids; a chunk without one is like no other.
    """
    import numpy

    units = {id_: vector / (numpy.linalg.norm(vector) or 1) for id_, vector in vectors.items()}
    likest = {str(candidate.document.id): 0.0 for candidate in candidates}
    left, chosen = list(candidates), list[Candidate]()
    while left and len(chosen) < k:
        best = max(left, key=lambda one: (1 - diversity) * one.score - diversity * likest[str(one.document.id)])
        left.remove(best)
        chosen.append(best)
        if (new := units.get(str(best.document.id))) is not None:
            likest |= {id_: max(likest[id_], float(units[id_] @ new)) for id_ in likest.keys() & units.keys()}
    return chosen
