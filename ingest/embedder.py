"""What a knowledge base needs of an embedder, and how any LangChain `Embeddings` gives it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

from langchain_core.embeddings import Embeddings

from ingest.batches import in_batches

WORD = re.compile(r"\w+|[^\w\s]")
UNKNOWN_LIMIT = 10**9
EMBEDDED_AT_ONCE = 128
"""Texts that an embedder without passes of its own gets in one call, after which it is known how many are done."""


class EmbedderLike(Protocol):
    """What a knowledge base needs of an embedder; `llm.embeddings.Embedder` is one. An ingest pickles it."""

    @property
    def fingerprint(self) -> dict[str, str]:
        """What makes two vectors comparable; `model` is the name shown to people."""

    @property
    def max_tokens(self) -> int:
        """Tokens of a document's own text that fit."""

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The character span of each token."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector for each text."""

    def embed_query(self, text: str) -> list[float]:
        """The vector of a question."""


@dataclass(frozen=True)
class ForeignEmbedder(Embeddings):
    """A LangChain `Embeddings` of which neither revision, tokens nor limit are known: its texts are not cut."""

    embeddings: Embeddings
    max_tokens: int = UNKNOWN_LIMIT

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """The model's name as far as it has one, and the dimension; embeds a word to learn it."""
        named: Any = self.embeddings
        kind = type(named)
        name = getattr(named, "model_name", None) or getattr(named, "model", None) or "unnamed"
        dimension = len(self.embed_query("dimension"))
        return {"model": f"{kind.__module__}.{kind.__qualname__}:{name}", "revision": f"dimension {dimension}"}

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The spans of words, in place of tokens."""
        return [match.span() for match in WORD.finditer(text)]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.embeddings.embed_documents(texts) if texts else []

    def embed_query(self, text: str) -> list[float]:
        return self.embeddings.embed_query(text)


def adapted(embeddings: Embeddings | EmbedderLike) -> EmbedderLike:
    """An embedder of ours as it is; any other LangChain one with what it lacks."""
    ours = hasattr(type(embeddings), "offsets")  # asking for its other attributes would load the model
    return cast(EmbedderLike, embeddings) if ours else ForeignEmbedder(cast(Embeddings, embeddings))


def embed_in_parts(embedder: EmbedderLike, texts: list[str]) -> Iterator[Mapping[str, list[float]]]:
    """The texts' vectors, some at a time, as soon as they are there."""
    if by_passes := getattr(embedder, "embed_by_passes", None):
        yield from by_passes(texts)
        return
    for some in in_batches(texts, EMBEDDED_AT_ONCE):
        yield dict(zip(some, embedder.embed_documents(some), strict=True))
