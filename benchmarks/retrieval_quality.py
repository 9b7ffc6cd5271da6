"""How well passages are found: `python -m benchmarks.retrieval_quality [EVERY [RERANKER]]`, through the product.

XQuAD's 240 paragraphs and 1,190 questions in English, in Chinese, and both in one knowledge base (EVERY: only each so
many-th question; RERANKER: a cross-encoder, whose row is printed too); then the bar, on `data/questions.jsonl` and, for
questions on other subjects, XQuAD's. No weight and no bar has seen a question.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from langchain_core.documents import Document

from ingest.pipeline import ingest
from ingest.probes import measure
from ingest.relevance import Weights
from ingest.store import KnowledgeBase
from llm.embeddings import Embedder
from llm.options import RerankerOptions
from llm.rerank import Reranker
from rag.retriever import HybridRetriever

DATA = Path(__file__).parents[1] / "data"
XQUAD = Path(__file__).parents[2] / "shared" / "data" / "xquad"
CHUNKS = 12
"""Asked for, so that five different paragraphs are among them: some paragraphs are cut in two."""
ASKED_AT_ONCE = 16
"""Questions that come together share passes of the embedder."""

Asked = list[tuple[str, str]]
"""Questions, each with the source of its paragraph."""
Find = Callable[[str], Iterable[str]]
"""From a question to sources, best first."""


class Remembering(Embedder):
    """Embeds a question once, though several knowledge bases and legs are asked it."""

    @cache  # noqa: B019 (as long as the benchmark runs)
    def _known(self, text: str) -> tuple[float, ...]:
        return tuple(super().embed_query(text))

    def embed_query(self, text: str) -> list[float]:
        return list(self._known(text))


def load(language: str) -> tuple[list[Document], Asked]:
    """The paragraphs, and the questions with their paragraphs' sources."""
    articles = json.loads((XQUAD / f"xquad.{language}.json").read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    named = [(f"{language}-{number}", paragraph) for number, paragraph in enumerate(paragraphs)]
    documents = [Document(id=name, page_content=one["context"], metadata={"source": name}) for name, one in named]
    return documents, [(qa["question"], name) for name, one in named for qa in one["qas"]]


@contextmanager
def made_of(documents: list[Document], embedder: Embedder) -> Iterator[KnowledgeBase]:
    """A knowledge base of these documents."""
    with tempfile.TemporaryDirectory() as folder:
        knowledge_base = KnowledgeBase.open(Path(folder), "documents", embedder, create=True)
        knowledge_base.add_documents(documents, ids=[document.id for document in documents])
        yield knowledge_base
        knowledge_base.close()


def found(find: Find, asked: Asked) -> tuple[float, float]:
    """The shares of questions whose paragraph is the first, and among the first five different ones."""
    with ThreadPoolExecutor(ASKED_AT_ONCE) as threads:
        sources = threads.map(lambda question: list(dict.fromkeys(find(question)))[:5], [q for q, _ in asked])
        every = [(some, wanted) for some, (_, wanted) in zip(sources, asked, strict=True)]
    return sum(s[:1] == [w] for s, w in every) / len(every), sum(w in s for s, w in every) / len(every)


def ways(knowledge_base: KnowledgeBase, embedder: Embedder, reranker: Reranker | None) -> dict[str, Find]:
    """The legs, plain reciprocal rank fusion, and the retriever with its defaults."""

    def named(ids: Iterable[str]) -> list[str]:
        return [chunk.metadata["source"] for chunk in knowledge_base.chunks(list(ids))]

    @cache
    def dense(question: str) -> list[str]:
        return [id_ for id_, _ in knowledge_base.dense(embedder.embed_query(question), 4 * CHUNKS)]

    @cache
    def lexical(question: str) -> list[str]:
        return [id_ for id_, _ in knowledge_base.lexical(question, 4 * CHUNKS)]

    def ranks_fused(question: str) -> list[str]:
        scores: dict[str, float] = {}
        for leg in (dense(question), lexical(question)):
            for rank, id_ in enumerate(leg, start=1):
                scores[id_] = scores.get(id_, 0) + 1 / (60 + rank)
        return sorted(scores, key=lambda id_: -scores[id_])

    def retrieved(with_reranker: Reranker | None) -> Find:
        retriever = HybridRetriever(knowledge_base=knowledge_base, embedder=embedder, k=CHUNKS, reranker=with_reranker)
        return lambda question: (passage.metadata["source"] for passage in retriever.invoke(question))

    every: dict[str, Find] = {
        "dense": lambda question: named(dense(question)),
        "BM25": lambda question: named(lexical(question)),
        "RRF(60)": lambda question: named(ranks_fused(question)),
        "fused": retrieved(None),
    }
    return every | ({"reranked": retrieved(reranker)} if reranker else {})


def print_tables(embedder: Embedder, reranker: Reranker | None, every: int) -> None:
    """One table for each knowledge base."""
    print("| knowledge base | questions | | R@1 | R@5 |\n|---|---|---|---|---|")
    for languages in (["en"], ["zh"], ["en", "zh"]):
        loaded = {language: load(language) for language in languages}
        with made_of([one for documents, _ in loaded.values() for one in documents], embedder) as knowledge_base:
            for language, (_, asked) in loaded.items():
                for name, find in ways(knowledge_base, embedder, reranker).items():
                    first, five = found(find, asked[::every])
                    place = f"{'+'.join(languages)}, {knowledge_base.count()[1]} chunks"
                    print(f"| {place} | {language} | {name} | {first:.4f} | {five:.4f} |", flush=True)
            began = time.perf_counter()
            weights = measure(knowledge_base)
            print(f"| measured in {time.perf_counter() - began:.1f} s | | {_shown(weights.words)} for words, "
                  f"{_shown(weights.characters)} for characters | | |", flush=True)  # fmt: skip


def _shown(weights: Weights) -> str:
    return f"{weights.dense:.1f} : {weights.lexical:.1f}"


def print_bar(embedder: Embedder) -> None:
    """How many questions find a passage above the bar, on the sample documents."""
    lines = (DATA / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    cases = [json.loads(line) for line in lines]
    kinds = {
        f"{language}, {name}": [
            c["question"] for c in cases if (c["language"], c["answerable"]) == (language, answered)
        ]
        for name, answered in (("answerable", True), ("unanswerable", False))
        for language in ("en", "zh")
    } | {f"{language}, XQuAD": [question for question, _ in load(language)[1]][::10] for language in ("en", "zh")}
    with tempfile.TemporaryDirectory() as folder:
        knowledge_base = KnowledgeBase.open(Path(folder), "sample", embedder, create=True)
        ingest(DATA / "sample", knowledge_base)
        retriever = HybridRetriever(knowledge_base=knowledge_base, embedder=embedder, k=1)
        print("\n| questions on the sample | above the bar |\n|---|---|")
        for kind, questions in kinds.items():
            bar = knowledge_base.relevance().bar
            passing = sum(bool(retriever.invoke(question, score_threshold=bar)) for question in questions)
            print(f"| {kind} | {passing}/{len(questions)} |", flush=True)
        knowledge_base.close()


def main(every: int = 1, reranker: str | None = None) -> None:
    embedder = Remembering()
    print_tables(embedder, Reranker(options=RerankerOptions(model=reranker)) if reranker else None, every)
    print_bar(embedder)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:3])
