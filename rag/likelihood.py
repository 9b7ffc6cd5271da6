"""How likely passages hold the answer to a question, told from words and vectors before any model is called."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from ingest.terms import terms
from rag.evidence import whole_sentences
from rag.statement import stem

READ = 2
"""Sentences that are embedded for one question: more tell no more, and each takes a pass of the embedder."""


@runtime_checkable
class Telling(Protocol):
    """A retriever that can tell the signs; `HybridRetriever` is one."""

    def similarities(self, query: str, texts: Sequence[str]) -> list[float]:
        """The cosine of the query to each text, in [-1, 1]."""

    def rarities(self, query: str) -> Mapping[str, float]:
        """The weight of each stem of the query that says what is asked for; empty where that says nothing."""


@dataclass(frozen=True)
class Signs:
    """What tells a question that the passages answer from one that they do not."""

    similarity: float
    """Cosine of the question to the nearer of the READ sentences that hold most of its words, in [-1, 1]."""
    coverage: float
    """Share of the question's words, by rarity, in one passage with its heading and its file's name, in [0, 1]."""
    lead: float
    """Of the best passage's score over the second one's, in [0, 1]."""

    @property
    def likelihood(self) -> float:
        """In [0, 1]: a logistic regression on every third question of XQuAD, English and Chinese, each asked of 120
        paragraphs with its own and of the 120 others: `python -m benchmarks.refusals fit`."""
        exponent = 5.0 * self.similarity + 8.9 * self.coverage + 2.7 * self.lead - 8.4
        return 1 / (1 + math.exp(-exponent))


def likelihood(question: str, passages: Sequence[Document], retriever: BaseRetriever) -> float:
    """How likely the passages hold the answer, in [0, 1]; 1.0 where nothing tells: the retriever cannot, or no document
    holds a function word of the question. Embeds READ sentences, so it takes time."""
    found = signs(question, passages, retriever) if isinstance(retriever, Telling) else None
    return found.likelihood if found else 1.0


def signs(question: str, passages: Sequence[Document], retriever: Telling) -> Signs | None:
    """The signs; None where nothing tells."""
    rarity = retriever.rarities(question)
    sentences = {
        one.page_content[start:end]: f"{_about(one)} {one.page_content[start:end]}"
        for one in passages
        for start, end in whole_sentences(one.page_content)
    }
    if not (rarity and sentences):
        return None

    def coverage(text: str) -> float:
        return sum(rarity[term] for term in {stem(term) for term in terms(text)} & rarity.keys()) / total

    total = sum(rarity.values())
    read = sorted(sentences, key=lambda sentence: -coverage(sentences[sentence]))[:READ]
    best, second = sorted([0.0, *(one.metadata.get("score") or 0.0 for one in passages)])[:-3:-1]
    return Signs(
        max(retriever.similarities(question, read)),
        max(coverage(f"{_about(one)} {one.page_content}") for one in passages),
        best - second if len(passages) > 1 else 0.0,
    )


def _about(passage: Document) -> str:
    return f"{passage.metadata.get('source', '')} {passage.metadata.get('heading') or ''}"
