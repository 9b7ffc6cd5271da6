"""Chunks and questions a second through the embedder and plain `encode()`: `python -m benchmarks.embedding [ROUNDS]`.

Every way is run once in each round, so that all share whatever else the machine does; its best round counts. On a
machine that is not quiet, set OMP_NUM_THREADS=1 and read the rates for a second of the processor's time.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from sentence_transformers import SentenceTransformer
from transformers.utils.logging import disable_progress_bar

from llm.embeddings import Embedder
from llm.models import resolve
from llm.passes import weight_type

ROOT = Path(__file__).parents[1]
XQUAD = ROOT.parent / "shared" / "data" / "xquad"
CHUNKS, QUESTIONS = 800, 32

Vectors = numpy.ndarray[Any, Any]


class InWeights(Embedder):
    """The embedder in weights of the benchmark's choice."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    @cached_property
    def _loaded(self) -> SentenceTransformer:
        return model_in(self.dtype)


def model_in(dtype: torch.dtype) -> SentenceTransformer:
    disable_progress_bar()
    return SentenceTransformer(resolve(Embedder().options.model), device="cpu", model_kwargs={"dtype": dtype})


def texts() -> Iterator[str]:
    """The sample documents that are plain text, and XQuAD's English and Chinese paragraphs where they are at hand."""
    for path in sorted((ROOT / "data" / "sample").rglob("*")):
        if path.suffix in {".md", ".csv"}:
            yield path.read_text(encoding="utf-8")
    for path in sorted(XQUAD.glob("*.json")):
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
            yield from (paragraph["context"] for paragraph in article["paragraphs"])


def chunks(embedder: Embedder) -> list[str]:
    """Chunks of 30 to 254 tokens (256 with the two special ones), shorter where a text ends, in mixed order."""
    lengths, found = random.Random(0), []
    for text in texts():
        spans = embedder.offsets(text)
        while spans:
            length = lengths.randint(30, 254)
            found.append(text[spans[0][0] : spans[:length][-1][1]])
            spans = spans[length:]
    lengths.shuffle(found)
    return found[:CHUNKS]


def questions() -> list[str]:
    lines = (ROOT / "data" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return random.Random(0).sample([json.loads(line)["question"] for line in lines], QUESTIONS)


class Run(NamedTuple):
    """One run of a way: seconds by the clock, seconds of the processor, and what came out."""

    seconds: float
    processor: float
    vectors: Any


def run(way: Callable[[], Any]) -> Run:
    start, processor = time.perf_counter(), time.process_time()
    vectors = way()
    return Run(time.perf_counter() - start, time.process_time() - processor, vectors)


def best_of(rounds: int, ways: dict[str, Callable[[], Any]]) -> dict[str, Run]:
    """The least seconds of each way, and its last vectors."""
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            runs[name].append(run(way))
    return {
        name: Run(min(one.seconds for one in found), min(one.processor for one in found), found[-1].vectors)
        for name, found in runs.items()
    }


def table(title: str, found: dict[str, Run], reference: Vectors) -> None:
    """Rates, and how they compare with the first way's."""
    print(
        f"\n| {title} | a second | ÷ first | a processor second | ÷ first | least cosine |\n|---|---|---|---|---|---|"
    )
    first = next(iter(found.values()))
    for name, one in found.items():
        number, whole = len(one.vectors), len(reference)
        rates = [number / one.seconds, number / one.seconds * first.seconds / whole]
        rates += [number / one.processor, number / one.processor * first.processor / whole]
        shown = " | ".join(f"{rate:.2f}" for rate in rates)
        print(f"| {name} | {shown} | {least_cosine(one.vectors, reference[:: whole // number]):.5f} |", flush=True)


def least_cosine(vectors: Any, reference: Vectors) -> float:
    given = numpy.array(vectors, dtype="float64")
    lengths = numpy.linalg.norm(given, axis=1) * numpy.linalg.norm(reference, axis=1)
    return float(((given * reference).sum(axis=1) / lengths).min())


def measure_documents(rounds: int) -> None:
    plain, chosen = model_in(torch.float32), weight_type("cpu")
    other = torch.float32 if chosen == torch.bfloat16 else torch.bfloat16
    embedder, in_other = Embedder(), InWeights(other)
    given = chunks(embedder)
    for warm_up in (plain.encode, embedder.embed_query, in_other.embed_query):
        warm_up("warm-up")
    found = best_of(
        rounds,
        {
            "encode() as it comes": lambda: plain.encode(given),
            "encode() of 32 after 32": lambda: numpy.concatenate(
                [plain.encode(given[at : at + 32]) for at in range(0, len(given), 32)]
            ),
            f"Embedder ({chosen}, chosen here)": lambda: embedder.embed_documents(given),
        },
    )
    found[f"Embedder ({other}, every 4th)"] = run(lambda: in_other.embed_documents(given[::4]))
    table(f"{len(given)} chunks", found, found["encode() as it comes"].vectors)


def measure_questions(rounds: int) -> None:
    embedder, asked = Embedder(), questions()
    embedder.embed_query("warm-up")

    async def together() -> list[list[float]]:
        return await asyncio.gather(*map(embedder.aembed_query, asked))

    found = best_of(
        rounds * 5,
        {
            "one at a time": lambda: [embedder.embed_query(question) for question in asked],
            "all at once": lambda: asyncio.run(together()),
        },
    )
    table(f"{len(asked)} questions", found, numpy.array(found["one at a time"].vectors))


def main(rounds: int) -> None:
    print(f"{torch.get_num_threads()} threads, {torch.cpu.get_capabilities()['cpu_name']}, torch {torch.__version__}")
    measure_documents(rounds)
    measure_questions(rounds)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
