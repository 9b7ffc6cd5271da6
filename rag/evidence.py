"""The sentences of the passages as evidence: which of them says what a sentence of the answer says."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal

from langchain_core.documents import Document

from rag.sentences import sentence_spans
from rag.statement import Statement, contradicts

SUPPORT = 0.6
"""Least share of a sentence's words, weighed by rarity, that its quote must hold. See `benchmarks/verification.py`."""
GOES_ON = re.compile(r"[ \t]*\n[ \t]*")
LINE_END = re.compile(r"[.!?。！？；:：;|][\"'”’」』》）)]*$")
NO_PROSE = re.compile(r"[#|>*+\-•]|\d+[.)、]|[\w .]{1,30}[:：]\s?\S")
LONG_LINE = 40
"""Characters of a line that was cut by the page's width, and is no heading."""
LEAST_TERMS = 2
"""Different words that a sentence without a mark must have beside its numbers: "No." would be found anywhere."""


@dataclass(frozen=True)
class Evidence:
    """Words of a source that support a sentence; offsets in characters of the passage."""

    source: int
    start: int
    end: int
    score: float
    """Share of the sentence's words found in the quote, weighed by rarity, in [0, 1]."""
    match: Literal["exact", "fuzzy"]


@dataclass(frozen=True)
class _Quote:
    """A sentence of a passage, with the one before where it leans on that."""

    source: int
    start: int
    end: int
    statement: Statement
    context: frozenset[str]
    """Words of the heading and, for names, of the sentence that a pronoun stands for."""
    passage: Statement


@dataclass
class Evidences:
    """All sentences of the sources, searchable."""

    sources: Mapping[int, Document]
    _folded: dict[int, str] = field(default_factory=dict)

    @cached_property
    def _quotes(self) -> list[_Quote]:
        return [quote for number, source in self.sources.items() for quote in _quotes(number, source)]

    @cached_property
    def _frequency(self) -> Counter[str]:
        return Counter(term for quote in self._quotes for term in quote.statement.terms | quote.context)

    def _weight(self, terms: frozenset[str]) -> float:
        """Inverse document frequency over the quotes (Spärck Jones 1972); a word that is in none weighs like one."""
        total = len(self._quotes) + 1
        return sum(math.log(total / (max(self._frequency[term], 1) + 0.5)) + 0.1 for term in terms)

    def best(self, sentence: str, sources: Sequence[int] | None = None) -> Evidence | None:
        """The best evidence for a sentence in these sources; None as sources: in all, if it says enough."""
        claim = Statement(sentence)
        if sources is None and len(claim.terms) < LEAST_TERMS:
            return None
        quotes = [quote for quote in self._quotes if sources is None or quote.source in sources]
        if not claim.terms:  # "No." or "2.": only where the passage says just that
            return next((_evidence(quote, 1.0, claim) for quote in quotes if _same(claim, quote)), None)
        found = [*self._singles(claim, quotes), *self._pairs(claim, quotes)]
        return max(
            found, key=lambda one: (one.score, one.match == "exact", -one.source, one.start - one.end), default=None
        )

    def _singles(self, claim: Statement, quotes: Sequence[_Quote]) -> Iterator[Evidence]:
        for quote in quotes:
            if score := self._score(claim, quote):
                yield _evidence(quote, score, claim)

    def _score(self, claim: Statement, quote: _Quote) -> float:
        """The share of the claim that the quote holds, 0 where that is too little or it says something else."""
        there = quote.statement.terms | quote.context
        share = self._weight(claim.terms & there) / self._weight(claim.terms)
        if share < SUPPORT or not claim.names <= there or contradicts(claim, quote.statement):
            return 0.0
        known = claim.designations <= quote.passage.designations and claim.subject & (there | quote.passage.terms)
        return share if known else 0.0

    def _pairs(self, claim: Statement, quotes: Sequence[_Quote]) -> Iterator[Evidence]:
        """Two neighbouring sentences that each support a part of the claim."""
        if len(claim.clauses) < 2 or not all(len(clause.terms) > 1 for clause in claim.clauses):
            return
        for one, two in pairwise(quotes):
            if one.source != two.source or one.start >= two.start:
                continue
            scores = [max(self._score(clause, one), self._score(clause, two)) for clause in claim.clauses]
            if min(scores):
                yield Evidence(one.source, one.start, two.end, sum(scores) / len(scores), "fuzzy")


def _quotes(number: int, source: Document) -> Iterator[_Quote]:
    text = source.page_content
    heading = f"{source.metadata.get('heading') or ''}"
    passage = Statement(f"{heading}\n{text}\n{source.metadata.get('source', '')}")
    before: tuple[int, int] | None = None
    for start, end in whole_sentences(text):
        statement = Statement(text[start:end])
        context = Statement(heading).terms
        first = start
        if before and statement.leans_on_the_one_before:
            first, context = before[0], context | Statement(text[slice(*before)]).terms
        yield _Quote(number, first, end, statement, context, passage)
        before = start, end


def whole_sentences(text: str) -> list[tuple[int, int]]:
    """The sentences of a passage, those in one that the layout of a page has cut into lines."""
    spans: list[tuple[int, int]] = []
    for start, end in sentence_spans(text):
        if (
            spans
            and GOES_ON.fullmatch(text[spans[-1][1] : start])
            and _goes_on(text[slice(*spans[-1])], text[start:end])
        ):
            start = spans.pop()[0]
        spans.append((start, end))
    return spans


def _goes_on(line: str, following: str) -> bool:
    """Whether a line without an end of a sentence is followed by the rest of it: not by a heading, item or row."""
    if not line or LINE_END.search(line) or NO_PROSE.match(line) or NO_PROSE.match(following):
        return False
    return following[0].islower() or len(line) >= LONG_LINE


def _evidence(quote: _Quote, score: float, claim: Statement) -> Evidence:
    exact = fold(claim.text) in fold(quote.statement.text)
    return Evidence(quote.source, quote.start, quote.end, score, "exact" if exact else "fuzzy")


def _same(claim: Statement, quote: _Quote) -> bool:
    return bool(fold(claim.text)) and fold(claim.text) == fold(quote.statement.text)


def fold(text: str) -> str:
    """A text without case, marks, white space and compatibility forms."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))
