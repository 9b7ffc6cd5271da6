"""The knowledge bases that `benchmarks.retrieval` asks: synthetic chunks with given vectors, put in by the writer."""

import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy

from benchmarks.lexical import DIFFERENT, mixed, texts
from ingest.batches import in_batches
from ingest.prepared import PreparedDocument
from ingest.relevance import UNMEASURED
from ingest.split import Chunk
from ingest.store import KnowledgeBase
from ingest.writer import Writer

DIMENSION = 384
IN_A_DOCUMENT = 50
"""Chunks of a document, whose vectors lie about one centre."""
TOPICS = 200
"""Centres about which those of the documents lie."""
DECAY = 0.5
"""The n-th of the axes is n to this power narrower than the first, as those of real embeddings are."""
PARTS = 100
"""A document has one of so many values of `part`, drawn by chance, so that a value meets a hundredth of the chunks."""
AUTHORS = ("Lin", "Marta", "李雷", "王芳")
BATCH = 1000


class GivenVectors:
    """In the embedder's place: each chunk comes with its vector, and each question."""

    def __init__(self) -> None:
        self.of_questions: dict[str, list[float]] = {}

    max_tokens = 10**9
    fingerprint: Mapping[str, str] = {"model": "given vectors", "revision": "1"}

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        raise NotImplementedError

    def embed_query(self, text: str) -> list[float]:
        return self.of_questions[text]


class Vectors:
    """Vectors of length one: a topic's centre, a document's beside it, the chunk's own beside that."""

    def __init__(self) -> None:
        self.chance = numpy.random.default_rng(0)
        self.widths = (1 / numpy.arange(1, DIMENSION + 1) ** DECAY).astype("float32")

    @cached_property
    def topics(self) -> numpy.ndarray:
        return self._drawn(TOPICS)

    def of_document(self, chunks: int) -> numpy.ndarray:
        centre = self.topics[self.chance.integers(TOPICS)] + 0.8 * self._drawn(1)
        return unit(centre + 0.8 * self._drawn(chunks))

    def near(self, vectors: numpy.ndarray) -> numpy.ndarray:
        """What a question about these would have."""
        return unit(vectors + 0.03 * self._drawn(len(vectors)))

    def _drawn(self, count: int) -> numpy.ndarray:
        return self.chance.standard_normal((count, DIMENSION), dtype="float32") * self.widths


def unit(vectors: numpy.ndarray) -> numpy.ndarray:
    return vectors / numpy.linalg.norm(vectors, axis=1, keepdims=True)


def filled(folder: Path, chunks: int) -> KnowledgeBase:
    """A knowledge base of so many chunks below `folder`; one that is there is used, or filled further."""
    knowledge_base = KnowledgeBase.open(folder / str(chunks), "synthetic", GivenVectors(), create=True)  # type: ignore[arg-type]
    there = knowledge_base.count()[1]
    if there == chunks:
        return knowledge_base
    vectors, chance = Vectors(), random.Random(0)
    documents = ((document, vectors.of_document(IN_A_DOCUMENT)) for document in _documents(chunks, chance))
    # Weights that are measured would be those of synthetic sentences, whose vectors nobody has made.
    knowledge_base.journal.note_relevance(replace(UNMEASURED, chunks=chunks))
    began, told = time.perf_counter(), there
    with knowledge_base.writing() as writer:
        for batch in in_batches(islice(documents, there // IN_A_DOCUMENT, None), BATCH // IN_A_DOCUMENT):
            _add(writer, batch)
            there += IN_A_DOCUMENT * len(batch)
            if there - told >= chunks / 10:
                rate = (there - told) / (time.perf_counter() - began)
                print(f"{there} chunks, the last {there - told} at {rate:.0f}/s", file=sys.stderr, flush=True)
                began, told = time.perf_counter(), there
    return knowledge_base


def _add(writer: Writer, batch: Sequence[tuple[PreparedDocument, numpy.ndarray]]) -> None:
    places = [(document, index) for document, _ in batch for index in range(IN_A_DOCUMENT)]
    rows = [row for _, of_document in batch for row in of_document]
    vectors = {document.stored_chunk(at).digest: row for (document, at), row in zip(places, rows, strict=True)}
    writer.add(places, vectors)
    for document, _ in batch:
        writer.commit(document)


def _documents(chunks: int, chance: random.Random) -> Iterator[PreparedDocument]:
    made = list(texts(min(chunks, DIFFERENT)))
    for number in range(chunks // IN_A_DOCUMENT):
        first = number * IN_A_DOCUMENT
        own = [_text(made, at, chance) for at in range(first, first + IN_A_DOCUMENT)]
        cut = tuple(Chunk(text, 0, len(text), None, None, f"Part {at}") for at, text in enumerate(own))
        about: dict[str, Any] = {"part": chance.randrange(PARTS), "author": chance.choice(AUTHORS)}
        source = f"{number // 100}/{number}.txt"
        yield PreparedDocument(source, str(number), cut, file=source, metadata=about)


def _text(made: list[str], at: int, chance: random.Random) -> str:
    return made[at] if at < len(made) else mixed(chance.choice(made), chance.choice(made))
