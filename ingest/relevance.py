"""How far cosine similarity and a question's own words speak for a chunk, as it was measured on a knowledge base."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from ingest.embedder import EmbedderLike

BAR = 0.5
"""The calibrated bar of every knowledge base: of its own sentences, asked as questions, nine in ten find a chunk whose
relevance is at least this, half of them with their own chunk as it is and half without the sentence in it."""
LEAST_CHUNKS = 24
"""With fewer, the weights of another knowledge base are the better guess."""
VERSION = 1
"""Raise it when the weights mean something else: those of another version are measured anew."""


@dataclass(frozen=True)
class Weights:
    """A chunk's relevance is the logistic function of `dense` · similarity + `lexical` · coverage + `bias`."""

    dense: float
    lexical: float
    bias: float

    def relevance(self, similarity: float, coverage: float) -> float:
        """In [0, 1], the higher the better; at BAR a chunk is as good as one that holds an answer should be."""
        exponent = self.dense * similarity + self.lexical * coverage + self.bias
        return 1 / (1 + math.exp(-max(-700.0, min(700.0, exponent))))

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """From what JSON has kept. Raises KeyError, TypeError and ValueError when it is something else."""
        read = cls(float(stored["dense"]), float(stored["lexical"]), float(stored["bias"]))
        if not (read.dense > 0 and read.lexical > 0 and math.isfinite(read.dense + read.lexical + read.bias)):
            raise ValueError(f"{read} are no weights")
        return read


@dataclass(frozen=True)
class Relevance:
    """What was measured, and when the knowledge base had so many chunks."""

    chunks: int
    words: Weights
    """For questions of which the embedder reads most letters in tokens of several characters."""
    characters: Weights
    """For the others, of which it may know nothing."""

    @property
    def bar(self) -> float:
        """The relevance below which a passage is not to be relied on: the same number, calibrated, everywhere."""
        return BAR

    def for_question(self, question: str, embedder: "EmbedderLike") -> Weights:
        """The weights for a question that is read as `question` is."""
        return self.words if reads_words(question, embedder) else self.characters

    def to_json(self) -> str:
        """For the journal."""
        return json.dumps({"version": VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, text: str | None) -> "Relevance":
        """From the journal; UNMEASURED for what another version or nobody has written."""
        try:
            stored = json.loads(text or "null")
            if stored["version"] == VERSION:
                return cls(int(stored["chunks"]), Weights.read(stored["words"]), Weights.read(stored["characters"]))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            pass
        return UNMEASURED

    def is_due(self, chunks: int) -> bool:
        """Whether a knowledge base, of so many chunks now, is twice or half as large as when this was measured."""
        return chunks >= LEAST_CHUNKS and not self.chunks / 2 < chunks < 2 * self.chunks


UNMEASURED = Relevance(0, Weights(5.3, 5.7, -4.0), Weights(2.3, 7.7, -4.0))
"""For a knowledge base too small to be measured: what `data/sample` gives with the small model."""


def reads_words(text: str, embedder: "EmbedderLike") -> bool:
    """Whether the embedder reads at least half of the text's letters in tokens of more than one character.

    An embedder whose vocabulary lacks a language cuts it into single characters: MiniLM reads English words whole and
    Chinese one character at a time. True for a text without letters.
    """
    spans = [(start, end) for start, end in embedder.offsets(text) if text[start:end].strip().isalnum()]
    return sum(end - start if end - start > 1 else start - end for start, end in spans) >= 0
