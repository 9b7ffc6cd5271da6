"""How well questions without an answer are told from the others: `python -m benchmarks.refusals [QUESTIONS]`.

On `data/questions.jsonl`, and on XQuAD's questions (QUESTIONS of each language), each asked of all paragraphs and of
all but its own, so that the rest of its article is there. For each way of telling: the area under its ROC curve, and
the share of unanswerable questions refused where nine in ten and eight in ten answerable ones are answered.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.retrieval_quality import CHUNKS, DATA, load, made_of
from ingest.pipeline import ingest
from ingest.relevance import BAR
from ingest.store import KnowledgeBase
from ingest.terms import terms
from llm.embeddings import Embedder
from rag.evidence import whole_sentences
from rag.grounding import GroundingOptions
from rag.nearest import known_share
from rag.retriever import HybridRetriever
from rag.statement import FUNCTION_WORDS

Scores = dict[str, float]
"""What each way of telling says of one question; higher is more answerable."""
BEST = "best passage's score"
KNOWN = "words in any document, by rarity"
"""Not told of XQuAD, where the words of the paragraph that is left out are still known."""
RULES: dict[str, Callable[[Scores], bool]] = {
    "passage at the bar": lambda one: one[BEST] >= BAR,
    "words known": lambda one: one[KNOWN] >= HALF,
    "both, as strict mode does": lambda one: one[BEST] >= BAR and one[KNOWN] >= HALF,
    "passage at 0.3, words known": lambda one: one[BEST] >= 0.3 and one[KNOWN] >= HALF,
    "product of both": lambda one: one[BEST] * one[KNOWN] >= HALF,
}
HALF = GroundingOptions().known
ASKED_AT_ONCE = 8
PASSAGES = 5


class Remembering(Embedder):
    """Embeds a sentence once, though many questions find it."""

    def __init__(self) -> None:
        super().__init__()
        self._vectors: dict[str, list[float]] = {}

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        self._vectors |= zip(new, super().embed_documents(new), strict=True)
        return [self._vectors[text] for text in texts]


def scores(question: str, without: str = "", *, retriever: HybridRetriever) -> Scores:
    """With the paragraph `without` left out."""
    found = retriever.invoke(question, k=CHUNKS)
    passages = [passage for passage in found if passage.metadata["source"] != without][:PASSAGES]
    texts = [one.page_content[start:end] for one in passages for start, end in whole_sentences(one.page_content)]
    held = set(terms(" ".join(f"{one.page_content} {one.metadata.get('heading') or ''}" for one in passages)))
    rarity = retriever.knowledge_base.term_weights(question)
    rarity = {term: weight for term, weight in rarity.items() if term not in FUNCTION_WORDS}
    total = sum(rarity.values()) or 1
    return {
        BEST: max(passage.metadata["score"] for passage in passages),
        "best sentence's relevance": max(retriever.relevances(question, texts), default=0.0),
        "words in its five passages, by rarity": sum(rarity[term] for term in rarity if term in held) / total,
        KNOWN: known_share(question, passages, retriever),
    }


def area(answered: list[float], unanswered: list[float]) -> float:
    """Of the ROC curve: how often an answerable question is above an unanswerable one."""
    pairs = [(one > two) + 0.5 * (one == two) for one in answered for two in unanswered]
    return sum(pairs) / len(pairs)


def refused(answered: list[float], unanswered: list[float], share: float) -> tuple[float, float]:
    """The bar that this share of the answerable reaches, and the share of the unanswerable below it."""
    bar = sorted(answered)[int((1 - share) * len(answered))]
    return bar, sum(score < bar for score in unanswered) / len(unanswered)


def rows(name: str, answerable: list[Scores], unanswerable: list[Scores], *, but: str = "") -> Iterator[str]:
    for way in sorted(answerable[0].keys() - {but}):
        one, two = [score[way] for score in answerable], [score[way] for score in unanswerable]
        nine, eight = (refused(one, two, share) for share in (0.9, 0.8))
        shown = " | ".join(f"{share:.2f} (bar {bar:.3f})" for bar, share in (nine, eight))
        yield f"| {name} | {len(one)} + {len(two)} | {way} | {area(one, two):.3f} | {shown} |"


def print_rules(answerable: list[Scores], unanswerable: list[Scores]) -> None:
    """How many each rule answers of one kind and refuses of the other."""
    print("\n| rule on data/questions.jsonl | answered | refused |\n|---|---|---|")
    for name, answers in RULES.items():
        answered, refusing = sum(map(answers, answerable)), sum(not answers(one) for one in unanswerable)
        print(f"| {name} | {answered}/{len(answerable)} | {refusing}/{len(unanswerable)} |")
    print(flush=True)


def main(questions: int = 200) -> None:
    embedder, threads = Remembering(), ThreadPoolExecutor(ASKED_AT_ONCE)
    heads = "questions", "answerable + not", "told by", "area", "refused, 0.9 answered", "0.8 answered"
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    cases = [json.loads(line) for line in (DATA / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        knowledge_base = KnowledgeBase.open(Path(folder), "sample", embedder, create=True)
        ingest(DATA / "sample", knowledge_base)
        retriever = HybridRetriever(knowledge_base=knowledge_base, embedder=embedder)
        every = list(threads.map(partial(scores, retriever=retriever), [case["question"] for case in cases]))
        knowledge_base.close()
    parts = [
        [score for score, case in zip(every, cases, strict=True) if case["answerable"] == is_] for is_ in (True, False)
    ]
    print(*rows("data/questions.jsonl", *parts), sep="\n", flush=True)
    print_rules(*parts)
    for language in ("en", "zh"):
        documents, asked = load(language)
        asked = asked[:: max(1, len(asked) // questions)]
        with made_of(documents, embedder) as knowledge_base:
            retriever = HybridRetriever(knowledge_base=knowledge_base, embedder=embedder)
            there = list(threads.map(partial(scores, retriever=retriever), [question for question, _ in asked]))
            gone = list(threads.map(partial(scores, retriever=retriever), *zip(*asked, strict=True)))
        print(*rows(f"XQuAD {language}", there, gone, but=KNOWN), sep="\n", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
