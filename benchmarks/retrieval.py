"""How long a question takes by both legs, at several sizes, with and without a filter, and what the dense leg misses.

Run: `python -m benchmarks.retrieval [CHUNKS ...] [--store FOLDER] [--fill]` (10000 and 100000; a million takes an hour
to be filled). Vectors and texts are synthetic (`benchmarks.retrieval_base`), a question is six words of a chunk and a
vector near its own, and its embedding is not timed. A filter is another one each time. With `--store` what was filled
is kept and used again; with `--fill` nothing is asked. How far the filling has come is said on standard error.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from benchmarks.retrieval_base import PARTS, Vectors, filled
from ingest.metadata import where as chroma_where
from ingest.store import KnowledgeBase
from rag.retriever import LEAST_DEPTH, HybridRetriever, Scores

PASSAGES = 5
QUESTIONS = 200
AT_ONCE = (1, 8, 32)
COMPARED = 100
"""Questions whose ten nearest chunks are compared with those of an exact search."""
SHARES: dict[str, int | None] = {"none": None, "1 %": 1, "10 %": 10, "50 %": 50}

Filter = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """What is asked."""

    text: str
    vector: list[float]
    where: Filter | None


def retriever(knowledge_base: KnowledgeBase, asked: list[Question]) -> HybridRetriever:
    """The product's, with the questions' vectors in place of an embedder."""
    embedder: Any = knowledge_base.embedder
    embedder.of_questions |= {question.text: question.vector for question in asked}
    return HybridRetriever(knowledge_base=knowledge_base, embedder=embedder, k=PASSAGES)


def questions(knowledge_base: KnowledgeBase, share: int | None, count: int, seed: int) -> list[Question]:
    """Each with a filter of its own that so many hundredths of the chunks meet."""
    chance, vectors = random.Random(seed), Vectors()
    ids = chance.sample(list(knowledge_base.journal.ids()), count)
    rows, texts = knowledge_base.vectors(ids), knowledge_base.stored(ids)
    parts = [document.metadata["part"] for document in texts.values()]
    near = vectors.near(numpy.stack([rows[id_] for id_ in ids]))
    return [
        Question(
            " ".join(chance.choices(texts[id_].page_content.split(), k=6))[:200],
            near[at].tolist(),
            a_filter(share, chance.choice(parts)),
        )
        for at, id_ in enumerate(ids)
    ]


def a_filter(share: int | None, part: int) -> Filter | None:
    """One that about so many hundredths meet, those of `part` among them."""
    if share is None:
        return None
    if share == 1:
        return {"part": part}
    first = min(part, PARTS - share)
    return {"$and": [{"part": {"$gte": first}}, {"part": {"$lt": first + share}}]}


async def times(knowledge_base: KnowledgeBase, asked: list[Question], at_once: int) -> list[float]:
    """Milliseconds of each question, so many under way at any time."""
    waiting, took, passages = iter(asked), [], retriever(knowledge_base, asked)

    async def ask() -> None:
        for question in waiting:
            began = time.perf_counter()
            assert await passages.ainvoke(question.text, filter=question.where)
            took.append(1000 * (time.perf_counter() - began))

    await asyncio.gather(*(ask() for _ in range(at_once)))
    return took


def stages(knowledge_base: KnowledgeBase, asked: list[Question]) -> str:
    """Medians of what a question is made of, one at a time, in milliseconds."""

    def dense(question: Question) -> Scores:
        return dict(knowledge_base.dense(question.vector, LEAST_DEPTH, question.where))

    def lexical(question: Question) -> Scores:
        return dict(knowledge_base.lexical(question.text, LEAST_DEPTH, question.where))

    def median(stage: Callable[[Question, Scores, Scores], object], count: int = 50) -> str:
        took = []
        for question in asked[:count]:
            found = dense(question), lexical(question)
            began = time.perf_counter()
            stage(question, *found)
            took.append(1000 * (time.perf_counter() - began))
        return f"{statistics.median(took):.2f}"

    return " | ".join(
        [
            median(lambda question, *_: dense(question)),
            median(lambda question, *_: by_chroma(knowledge_base, question), 8),
            median(lambda question, *_: lexical(question)),
            median(lambda question, near, good: knowledge_base.similarities(question.vector, [*(good.keys() - near)])),
            median(lambda question, near, good: knowledge_base.coverages(question.text, [*(near | good)], good)),
            median(lambda question, near, good: knowledge_base.chunks([*(near | good)][:PASSAGES])),
        ]
    )


def by_chroma(knowledge_base: KnowledgeBase, question: Question) -> object:
    """The dense leg as Chroma answers it by itself."""
    where = chroma_where(question.where)
    return knowledge_base.collection.query(
        numpy.asarray([question.vector], dtype="float32"), n_results=LEAST_DEPTH, where=where, include=["distances"]
    )


@dataclass(frozen=True)
class Every:
    """All chunks as Chroma gives them."""

    ids: list[str]
    vectors: numpy.ndarray
    parts: numpy.ndarray

    @classmethod
    def of(cls, knowledge_base: KnowledgeBase) -> "Every":
        ids, vectors, parts = list(knowledge_base.journal.ids()), [], []
        for at in range(0, len(ids), 5000):
            got = knowledge_base.collection.get(ids=ids[at : at + 5000], include=["embeddings", "metadatas"])
            ids[at : at + 5000] = got["ids"]
            vectors.append(numpy.asarray(got["embeddings"], dtype="float32"))
            parts += [int(str((about or {})["part"])) for about in got["metadatas"] or []]
        return cls(ids, numpy.concatenate(vectors), numpy.asarray(parts))


def recall(knowledge_base: KnowledgeBase, every: Every, asked: list[Question]) -> float:
    """The share of the ten nearest chunks, by all vectors, that the dense leg finds."""
    hits = 0
    for question in asked:
        similarities = every.vectors @ numpy.asarray(question.vector, dtype="float32")
        if question.where:
            first, end = bounds(question.where)
            similarities[(every.parts < first) | (every.parts >= end)] = -2
        exact = {every.ids[row] for row in numpy.argpartition(similarities, -10)[-10:]}
        hits += len(exact & {id_ for id_, _ in knowledge_base.dense(question.vector, 10, question.where)})
    return hits / (10 * len(asked))


def bounds(where: Filter) -> tuple[int, int]:
    """The first `part` that meets it, and the one behind the last."""
    if "part" in where:
        return where["part"], where["part"] + 1
    return where["$and"][0]["part"]["$gte"], where["$and"][1]["part"]["$lt"]


def at(share: float, took: list[float]) -> float:
    """The time that so many questions do not exceed."""
    return sorted(took)[int(len(took) * share)]


def measure(knowledge_base: KnowledgeBase, chunks: int) -> None:
    """The rows of one size."""
    every, read = Every.of(knowledge_base), 0.0
    for name, share in SHARES.items():
        if share and not read:
            read = time_to_memory(knowledge_base)
        asyncio.run(times(knowledge_base, questions(knowledge_base, share, 20, 1), 8))
        asked = questions(knowledge_base, share, QUESTIONS, 2)
        cells = []
        for at_once in AT_ONCE:
            took = asyncio.run(times(knowledge_base, asked, at_once))
            cells.append(f"{at(0.5, took):.1f} / {at(0.95, took):.1f}")
        found = recall(knowledge_base, every, asked[:COMPARED])
        print(
            f"| {chunks} | {name} | {' | '.join(cells)} | {found:.4f} | {stages(knowledge_base, asked)} |",
            flush=True,
        )
    print(f"\nafter the first question with a filter all was in memory within {read:.1f} s\n")


def time_to_memory(knowledge_base: KnowledgeBase) -> float:
    """Seconds from the first question with a filter until all chunks are in memory."""
    first = questions(knowledge_base, 1, 1, 0)[0]
    began = time.perf_counter()
    knowledge_base.dense(first.vector, 1, first.where)
    knowledge_base.wait_for_memory()
    return time.perf_counter() - began


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("chunks", nargs="*", type=int, default=[10_000, 100_000])
    parser.add_argument("--store", type=Path)
    parser.add_argument("--fill", action="store_true")
    arguments = parser.parse_args()
    print("p50 / p95 in ms with 1, 8 and 32 at a time; medians of the parts of one question\n")
    print(
        "| chunks | filter | 1 | 8 | 32 | recall@10 | dense | by Chroma | lexical | similarities | coverages | chunks |"
    )
    print(f"|{'---|' * 12}")
    with tempfile.TemporaryDirectory() as folder:
        for count in arguments.chunks:
            knowledge_base = filled(arguments.store or Path(folder), count)
            if not arguments.fill:
                measure(knowledge_base, count)
            knowledge_base.close()


if __name__ == "__main__":
    main()
