"""How to weigh the two legs: `python -m benchmarks.fusion [PROBES]`, on XQuAD's 240 paragraphs and 1,190 questions.

Both legs score every paragraph here, without an index: cosine similarity, and BM25 over the most that a paragraph could
score for the question, in [0, 1). The weights come from the paragraphs alone: logistic regressions on PROBES sentences,
each asked of the paragraphs as they are ("verbatim") and of its own without it ("cloze": the inverse cloze task of Lee,
Chang and Toutanova 2019). People's questions lie between, so the mean of the two is what is tried; for Chinese, which
the embedder reads character by character, the weights are measured on Chinese probes. Scaling each leg by its best
(what the retriever does today) and reciprocal rank fusion are there to compare.
"""

import json
import math
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
from sklearn.linear_model import LogisticRegression

from ingest.split import SENTENCE
from ingest.terms import terms
from llm.embeddings import Embedder

XQUAD = Path(__file__).parents[2] / "shared" / "data" / "xquad"
K1, B = 1.2, 0.75
RIVALS = 20
"""Best paragraphs of each leg that a probe's own is compared with."""
LEAST_WEIGHT = 0.1

Scores = numpy.ndarray[Any, Any]
"""Questions × paragraphs."""


class Paragraphs:
    """Texts with their vectors and their terms, for exact scores of both legs."""

    def __init__(self, texts: list[str], embedder: Embedder) -> None:
        self.texts, self.embedder = texts, embedder
        self.vectors = numpy.array(embedder.embed_documents(texts))
        self.terms = [Counter(terms(text)) for text in texts]
        self.mean = numpy.mean([found.total() for found in self.terms])
        self.frequency = Counter(term for found in self.terms for term in found)

    def similarities(self, questions: list[str]) -> Scores:
        return numpy.array(self.embedder.embed_documents(questions)) @ self.vectors.T

    def coverages(self, questions: list[str]) -> Scores:
        return numpy.array([[self.coverage(question, found) for found in self.terms] for question in questions])

    def coverage(self, question: str, found: Counter[str]) -> float:
        """BM25 over what a text could have that repeats every term of the question for ever."""
        weights = {term: self._weight(term) for term in dict.fromkeys(terms(question))}
        length = K1 * (1 - B + B * found.total() / self.mean)
        held = sum(weight * found[term] / (found[term] + length) for term, weight in weights.items() if term in found)
        return held / (sum(weights.values()) or 1)

    def _weight(self, term: str) -> float:
        has = self.frequency[term]
        return math.log(1 + (len(self.texts) - has + 0.5) / (has + 0.5))


def load(language: str) -> tuple[list[str], list[str], list[int]]:
    """Paragraphs, questions, and the number of each question's paragraph."""
    articles = json.loads((XQUAD / f"xquad.{language}.json").read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    asked = [(qa["question"], number) for number, paragraph in enumerate(paragraphs) for qa in paragraph["qas"]]
    return [one["context"] for one in paragraphs], [question for question, _ in asked], [number for _, number in asked]


def probed(paragraphs: Paragraphs, number: int, seed: int) -> numpy.ndarray[Any, Any]:
    """Weights of similarity and coverage: the mean of those of verbatim and of cloze probes."""
    chance = random.Random(seed)
    own = [chance.randrange(len(paragraphs.texts)) for _ in range(number)]
    sentences = [chance.choice(_sentences(paragraphs.texts[one])) for one in own]
    similarities, coverages = paragraphs.similarities(sentences), paragraphs.coverages(sentences)
    verbatim = _regression(similarities, coverages, own)
    rests = [paragraphs.texts[one].replace(sentence, " ") for one, sentence in zip(own, sentences, strict=True)]
    vectors = numpy.array(paragraphs.embedder.embed_documents(rests))
    asked = numpy.array(paragraphs.embedder.embed_documents(sentences))
    rows = numpy.arange(number)
    similarities[rows, own] = (asked * vectors).sum(1)
    pairs = zip(sentences, rests, strict=True)
    coverages[rows, own] = [paragraphs.coverage(sentence, Counter(terms(rest))) for sentence, rest in pairs]
    return numpy.maximum(LEAST_WEIGHT, (verbatim + _regression(similarities, coverages, own)) / 2)


def _sentences(text: str) -> list[str]:
    ends = [match.end() for match in SENTENCE.finditer(text)]
    return [text[start:end].strip() for start, end in zip([0, *ends], [*ends, len(text)], strict=True) if end > start]


def _regression(similarities: Scores, coverages: Scores, own: list[int]) -> numpy.ndarray[Any, Any]:
    figures, right = [], []
    for row, one in enumerate(own):
        best = {*numpy.argsort(-similarities[row])[:RIVALS], *numpy.argsort(-coverages[row])[:RIVALS], one}
        figures += [(similarities[row, number], coverages[row, number]) for number in best]
        right += [number == one for number in best]
    return LogisticRegression(C=10.0).fit(figures, right).coef_[0]


def ranks(scores: Scores) -> Scores:
    """From 1 for the best of each question."""
    return (-scores).argsort(1).argsort(1) + 1


def ways(similarities: Scores, coverages: Scores, weights: Scores) -> dict[str, Callable[[], Scores]]:
    """The ways to one score."""
    best = coverages.max(1, keepdims=True) + 1e-9
    scaled = (1 + similarities) / (1 + similarities).max(1, keepdims=True)
    return {
        "dense": lambda: similarities,
        "BM25": lambda: coverages,
        "RRF(60)": lambda: 1 / (60 + ranks(similarities)) + 1 / (60 + ranks(coverages)),
        "each by its best, 0.5": lambda: scaled + coverages / best,
        "each by its best, 0.05": lambda: 0.05 * scaled + 0.95 * coverages / best,
        "probes": lambda: weights[0] * similarities + weights[1] * coverages,
    }


def found(scores: Scores, wanted: list[int], k: int) -> float:
    """The share of questions whose paragraph is among the first k; who is as good as it stands behind it."""
    own = scores[numpy.arange(len(wanted)), wanted][:, None]
    return float(((scores > own).sum(1) < k).mean())


def main(probes: int) -> None:
    """Print one table for each language."""
    embedder = Embedder()
    for language in ("en", "zh"):
        texts, questions, wanted = load(language)
        paragraphs = Paragraphs(texts, embedder)
        similarities, coverages = paragraphs.similarities(questions), paragraphs.coverages(questions)
        print(f"\n| {language} | weights | R@1 | R@5 |\n|---|---|---|---|")
        for seed in range(3):
            weights = probed(paragraphs, probes, seed)
            for name, way in ways(similarities, coverages, weights).items():
                if seed == 0 or name == "probes":
                    shown = f"{weights[0]:.2f} : {weights[1]:.2f}" if name == "probes" else ""
                    scores = way()
                    print(f"| {name} | {shown} | {found(scores, wanted, 1):.4f} | {found(scores, wanted, 5):.4f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 128)
