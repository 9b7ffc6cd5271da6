"""Which words of which source hold what an answer says: from the model's marks, else matched after the fact."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from langchain_core.documents import Document

from ingest.terms import terms
from rag.sentences import sentence_spans

MARK = re.compile(r"\s*[\[【]\s*(\d{1,2}(?:\s*[,，、]\s*\d{1,2})*)\s*[\]】]")
SUPPORT = 0.6
"""Share of a sentence's terms, weighed by rarity, that a quote must hold. Chosen on `data/questions.jsonl`."""
LEAST_TERMS = 3
"""Different terms that a sentence without a mark must have: "No." or "2." would be found in any passage."""
LONGEST_QUOTE = 2
"""Sentences of a passage that may support one sentence of the answer together."""


@dataclass(frozen=True)
class Citation:
    """A sentence of the answer and the words of a source that support it. All offsets are in characters."""

    source: int
    """Number of the source, from 1."""
    file: str
    page: int | None
    line: int | None
    heading: str
    start: int
    """Where the quote starts in the document's extracted text."""
    end: int
    quote: str
    answer_start: int
    answer_end: int
    score: float
    """Share of the sentence's terms found in the quote, weighed by rarity, in [0, 1]."""
    method: Literal["mark", "match"]


@dataclass(frozen=True)
class _Quote:
    """One or two neighbouring sentences of a passage."""

    source: int
    start: int
    end: int
    terms: frozenset[str]


def cite(answer: str, passages: Sequence[Document]) -> tuple[str, list[Citation]]:
    """The answer without the model's marks, and a citation for each of its sentences that the passages support.

    A mark `[n]` points at the n-th passage; the quote is looked for there. A sentence without a mark is matched with
    all passages. A sentence whose best quote holds less than `SUPPORT` of it, or lacks one of its numbers, has none.
    """
    evidence = _Evidence(passages)
    text, marks = _without_marks(answer)
    citations: list[Citation] = []
    for start, end in sentence_spans(text):
        if text[end - 1] in "?？":  # a question says nothing that could be supported
            continue
        marked = {number for position, number in marks if start < position <= end}
        sources: list[int | None] = [*sorted(marked & set(range(1, len(passages) + 1)))]
        method: Literal["mark", "match"] = "mark" if sources else "match"
        found = (evidence.for_sentence(text[start:end], source) for source in sources or [None])
        citations += [_citation(passages, quote, score, (start, end), method) for quote, score in filter(None, found)]
    return text, citations


class _Evidence:
    """The sentences of all passages, searchable by their terms."""

    def __init__(self, passages: Sequence[Document]) -> None:
        self._passages = passages

    @cached_property
    def _quotes(self) -> list[_Quote]:
        return [quote for number, passage in enumerate(self._passages, 1) for quote in _quotes(number, passage)]

    @cached_property
    def _frequency(self) -> Counter[str]:
        return Counter(term for quote in self._quotes for term in quote.terms)

    def _weight(self, term: str) -> float:
        """Inverse document frequency over the quotes (Spärck Jones 1972); a term that is in none weighs most."""
        return math.log((len(self._quotes) + 1) / (self._frequency[term] + 0.5))

    def for_sentence(self, sentence: str, source: int | None) -> tuple[_Quote, float] | None:
        """The best quote for a sentence and its score, from one source or from all (None); None without support."""
        wanted = frozenset(terms(sentence))
        total = sum(map(self._weight, wanted))
        if source is None and len(wanted) < LEAST_TERMS:
            return None
        numbers = {term for term in wanted if any(character.isdigit() for character in term)}
        able = [q for q in self._quotes if source in (None, q.source) and numbers <= q.terms]
        if not able or not total:
            return None
        shares = {quote: sum(map(self._weight, wanted & quote.terms)) / total for quote in able}
        best = max(able, key=lambda quote: (shares[quote], -quote.source, -len(quote.terms)))
        return (best, shares[best]) if shares[best] >= SUPPORT else None


def _quotes(number: int, passage: Document) -> list[_Quote]:
    text = passage.page_content
    spans = sentence_spans(text)
    windows = [spans[at : at + size] for size in range(1, LONGEST_QUOTE + 1) for at in range(len(spans) - size + 1)]
    heading = terms(passage.metadata.get("heading") or "")
    return [
        _Quote(number, window[0][0], window[-1][1], frozenset([*heading, *terms(text[window[0][0] : window[-1][1]])]))
        for window in windows
    ]


def _citation(
    passages: Sequence[Document], quote: _Quote, score: float, span: tuple[int, int], method: Literal["mark", "match"]
) -> Citation:
    passage = passages[quote.source - 1]
    offset = passage.metadata.get("start", 0)
    before = passage.page_content[: quote.start].count("\n")
    line = passage.metadata.get("line")
    return Citation(
        source=quote.source,
        file=passage.metadata.get("source", ""),
        page=passage.metadata.get("page"),
        line=None if line is None else line + before,
        heading=passage.metadata.get("heading") or "",
        start=offset + quote.start,
        end=offset + quote.end,
        quote=passage.page_content[quote.start : quote.end],
        answer_start=span[0],
        answer_end=span[1],
        score=round(score, 3),
        method=method,
    )


def _without_marks(answer: str) -> tuple[str, list[tuple[int, int]]]:
    """The text without marks, and for each mark its position in that text and a number."""
    pieces: list[str] = []
    marks: list[tuple[int, int]] = []
    end = length = 0
    for mark in MARK.finditer(answer):
        pieces.append(answer[end : mark.start()])
        length += len(pieces[-1])
        marks += [(length, int(number)) for number in re.findall(r"\d+", mark[1])]
        end = mark.end()
    return "".join([*pieces, answer[end:]]), marks
