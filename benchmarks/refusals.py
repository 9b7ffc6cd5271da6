"""How well questions without an answer are told from the others: `python -m benchmarks.refusals [fit]`.

On `data/questions.jsonl`, and on XQuAD's questions, each asked of the half of the paragraphs that has its own and of
the other half, in which the rest of its article is. For each way of telling: the area under its ROC curve, the share of
unanswerable questions refused where nine in ten of the others are answered, and of these answered where nine in ten of
those are refused; for each rule, and for strict mode with other values of `grounding.likelihood`, both shares. `fit`
prints the weights of `rag.likelihood` instead, by every third question; the others are measured.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.retrieval_quality import DATA, load, made_of
from ingest.pipeline import ingest
from ingest.relevance import BAR
from ingest.store import KnowledgeBase
from ingest.terms import terms
from llm.embeddings import Embedder
from rag.evidence import whole_sentences
from rag.expected import ASKING
from rag.grounding import GroundingOptions, answerable
from rag.likelihood import Signs, signs
from rag.retriever import NO_WORD, HybridRetriever
from rag.statement import FUNCTION_WORDS, stem

Scores = dict[str, float]
"""What each way of telling says of one question; higher is more answerable."""
Told = list[tuple[Scores, bool]]
"""Of each question also whether it can be answered."""
BEST, KNOWN, LIKELY = "best passage's score", "words in any document, by rarity", "likelihood"
COVERED, STRICT = "its words in one passage, by rarity", "likelihood, 0 where strict mode refuses without it"
LEAST = GroundingOptions().likelihood
RULES: dict[str, Callable[[Scores], bool]] = {
    "passage at the bar": lambda one: one[BEST] >= BAR,
    "half of the words known": lambda one: one[KNOWN] >= 0.5,
    "both": lambda one: one[BEST] >= BAR and one[KNOWN] >= 0.5,
    "product of both": lambda one: one[BEST] * one[KNOWN] >= 0.5,
    "likelihood": lambda one: one[LIKELY] >= LEAST,
    "strict mode: likelihood, bar, codes": lambda one: one[STRICT] >= LEAST,
}
LEASTS = (0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7)
"""Values of `grounding.likelihood` that are compared."""
EVERY = 6
ASKED_AT_ONCE = 8


class Remembering(Embedder):
    """Embeds a sentence once, though many questions find it."""

    def __init__(self) -> None:
        super().__init__()
        self._vectors: dict[str, list[float]] = {}

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        self._vectors |= zip(new, super().embed_documents(new), strict=True)
        return [self._vectors[text] for text in texts]


def known(question: str, texts: list[str], retriever: HybridRetriever) -> float:
    """The share of the question's words, by rarity, that any document holds, or, in another form, one of `texts`."""
    rarity = retriever.knowledge_base.term_weights(f"{question} {NO_WORD}")
    unknown = rarity.pop(NO_WORD)
    said = {t: weight for t, weight in rarity.items() if t not in FUNCTION_WORDS and not ASKING.fullmatch(t)}
    forms = {stem(term) for text in texts for term in terms(text)}
    held = sum(weight for term, weight in said.items() if weight < unknown or stem(term) in forms)
    return held / (sum(said.values()) or 1)


def scores(question: str, *, retriever: HybridRetriever) -> Scores:
    passages = retriever.invoke(question)
    texts = [one.page_content[start:end] for one in passages for start, end in whole_sentences(one.page_content)]
    found = signs(question, passages, retriever) or Signs(1.0, 1.0, 1.0)
    return {
        BEST: max(passage.metadata["score"] for passage in passages),
        "best sentence's relevance": max(retriever.relevances(question, texts)),
        "cosine of the nearest sentence": found.similarity,
        COVERED: found.coverage,
        "lead over the second passage": found.lead,
        KNOWN: known(question, [one.page_content for one in passages], retriever),
        LIKELY: found.likelihood,
        STRICT: found.likelihood * answerable(question, passages, BAR),
    }


def area(answered: list[float], unanswered: list[float]) -> float:
    """Of the ROC curve: how often an answerable question is above an unanswerable one."""
    pairs = [(one > two) + 0.5 * (one == two) for one in answered for two in unanswered]
    return sum(pairs) / len(pairs)


def refused(answered: list[float], unanswered: list[float], share: float) -> tuple[float, float]:
    """The bar that this share of the answerable reaches, and the share of the unanswerable below it."""
    bar = sorted(answered)[int((1 - share) * len(answered))]
    return bar, sum(score < bar for score in unanswered) / len(unanswered)


def answered(answerable: list[float], unanswerable: list[float], share: float) -> float:
    """The share of the answerable above a bar that this share of the unanswerable does not reach."""
    bar = sorted(unanswerable)[min(len(unanswerable) - 1, int(share * len(unanswerable)))]
    return sum(score > bar for score in answerable) / len(answerable)


def rows(name: str, told: Told) -> Iterator[str]:
    """Lines of the table of ways."""
    for way in [way for way in told[0][0] if way != STRICT]:
        one, two = ([score[way] for score, answers in told if answers == is_] for is_ in (True, False))
        bar, share = refused(one, two, 0.9)
        numbers = f"{area(one, two):.3f} | {share:.2f} (bar {bar:.3f}) | {answered(one, two, 0.9):.2f}"
        yield f"| {name} | {len(one)} + {len(two)} | {way} | {numbers} |"


def rule_rows(name: str, told: Told) -> Iterator[str]:
    """Lines of the table of rules: how many each answers of one kind and refuses of the other."""
    for rule, answers in RULES.items():
        yield f"| {name} | {rule} | {both_shares(told, answers)} |"


def least_rows(every: dict[str, Told]) -> Iterator[str]:
    """The table of strict mode's options."""
    yield f"| `grounding.likelihood` | {' | '.join(f'{name}, answered | refused' for name in every)} |"
    yield f"|{'---|' * (1 + 2 * len(every))}"
    for least in LEASTS:
        shares = (both_shares(told, lambda one, least=least: one[STRICT] >= least) for told in every.values())
        yield f"| {least} | {' | '.join(shares)} |"


def both_shares(told: Told, answers: Callable[[Scores], bool]) -> str:
    """Two cells: how many of the answerable are answered, and of the others refused."""
    one, two = ([score for score, is_ in told if is_ == wanted] for wanted in (True, False))
    right, refusing = sum(map(answers, one)), sum(not answers(score) for score in two)
    return f"{right}/{len(one)} ({right / len(one):.2f}) | {refusing}/{len(two)} ({refusing / len(two):.2f})"


def of_the_sample(embedder: Embedder, threads: ThreadPoolExecutor) -> dict[str, Told]:
    """`data/questions.jsonl`, all and by language."""
    cases = [json.loads(line) for line in (DATA / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        knowledge_base = KnowledgeBase.open(Path(folder), "sample", embedder, create=True)
        ingest(DATA / "sample", knowledge_base)
        retriever = HybridRetriever(knowledge_base=knowledge_base, embedder=embedder)
        every = list(threads.map(partial(scores, retriever=retriever), [case["question"] for case in cases]))
        knowledge_base.close()
    told = [(score, bool(case["answerable"])) for score, case in zip(every, cases, strict=True)]
    by = {
        lang: [one for one, case in zip(told, cases, strict=True) if case["language"] == lang] for lang in ("en", "zh")
    }
    return {"questions.jsonl": told} | {f"questions.jsonl {language}": some for language, some in by.items()}


def of_xquad(language: str, chosen: slice, embedder: Embedder, threads: ThreadPoolExecutor) -> Told:
    """The chosen questions, each asked of both halves of the paragraphs."""
    documents, asked = load(language)
    told: Told = []
    for half in (0, 1):
        own = {document.metadata["source"] for document in documents[half::2]}
        with made_of(documents[half::2], embedder) as knowledge_base:
            retriever = HybridRetriever(knowledge_base=knowledge_base, embedder=embedder)
            every = threads.map(partial(scores, retriever=retriever), [question for question, _ in asked[chosen]])
            told += [(score, source in own) for score, (_, source) in zip(every, asked[chosen], strict=True)]
    return told


def fit(told: Told) -> Any:
    """The weights of similarity, coverage and lead, and the bias, of a logistic regression."""
    import numpy
    from scipy.optimize import minimize

    ways = "cosine of the nearest sentence", COVERED, "lead over the second passage"
    signs = numpy.array([[score[way] for way in ways] for score, _ in told])
    mean, deviation = signs.mean(axis=0), signs.std(axis=0)
    columns = numpy.c_[(signs - mean) / deviation, numpy.ones(len(told))]
    sides = numpy.array([1 if answers else -1 for _, answers in told])
    loss = minimize(lambda w: numpy.logaddexp(0, -sides * (columns @ w)).sum() + w[:3] @ w[:3] / 2, numpy.zeros(4))
    weights = loss.x[:3] / deviation
    return numpy.append(weights, loss.x[3] - weights @ mean).round(2)


def main(fits: bool) -> None:
    embedder, threads = Remembering(), ThreadPoolExecutor(ASKED_AT_ONCE)
    if fits:
        told = [one for lang in ("en", "zh") for one in of_xquad(lang, slice(0, None, 3), embedder, threads)]
        print("similarity, coverage, lead, bias:", *fit(told))
        return
    every = of_the_sample(embedder, threads)
    for language in ("en", "zh"):
        every[f"XQuAD {language}"] = of_xquad(language, slice(1, None, EVERY), embedder, threads)
    heads = "questions", "answerable + not", "told by", "area", "refused, 0.9 answered", "answered, 0.9 refused"
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    print(*(row for name, told in every.items() for row in rows(name, told)), sep="\n")
    print("\n| questions | rule | answered | refused |\n|---|---|---|---|")
    print(*(row for name, told in every.items() for row in rule_rows(name, told)), sep="\n")
    print("", *least_rows(every), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:] == ["fit"])
