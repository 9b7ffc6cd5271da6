"""The sentence of the passages that stands nearest a question: what is quoted where a small model's own words fail."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from rag.evidence import whole_sentences
from rag.expected import holds_what_is_asked
from rag.statement import Statement

LEAST_TERMS = 2
"""Different words of a sentence that may be quoted: a heading of one word answers nothing."""
EXPECTED = 3.0
"""Times that a sentence without the kind of thing that is asked for must be likelier to be taken before one with it."""


@dataclass(frozen=True)
class Nearest:
    """A sentence of a source; offsets in characters of the passage."""

    source: int
    start: int
    end: int


@runtime_checkable
class Weighing(Protocol):
    """A retriever that can weigh any text by its measure; `HybridRetriever` is one."""

    def relevances(self, query: str, texts: Sequence[str]) -> list[float]:
        """How near each text is to the query, in [0, 1]."""


def nearest_sentence(question: str, sources: Mapping[int, Document], retriever: BaseRetriever) -> Nearest | None:
    """The sentence that most likely answers the question; None where the sources hold no sentence.

    By the retriever's own measure, else by the question's words that it holds; before it comes, of two nearly as near,
    one with the kind of thing that is asked for (`rag.expected`). Embeds the sentences, so it takes time.
    """
    found = {
        Nearest(number, start, end): source.page_content[start:end]
        for number, source in sources.items()
        for start, end in whole_sentences(source.page_content)
        if not source.page_content.startswith("#", start)
    }
    found = {place: text for place, text in found.items() if len(Statement(text).terms) >= LEAST_TERMS}
    texts = list(found.values())
    near = retriever.relevances(question, texts) if isinstance(retriever, Weighing) else _shares(question, texts)
    odds = {
        place: relevance / max(1 - relevance, 1e-9) * (EXPECTED if holds_what_is_asked(question, text) else 1)
        for (place, text), relevance in zip(found.items(), near, strict=True)
    }
    return max(odds, key=lambda place: odds[place], default=None)


def _shares(question: str, texts: Sequence[str]) -> list[float]:
    """The share of the question's words that each text holds, by their rarity among the texts."""
    asked, held = Statement(question).terms, [Statement(text).terms for text in texts]
    frequency = Counter(term for terms in held for term in terms)
    weights = {term: math.log(1 + len(texts) / (frequency[term] + 0.5)) for term in asked}
    return [sum(weights[term] for term in asked & terms) / (sum(weights.values()) or 1) for terms in held]
