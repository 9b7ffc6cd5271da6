"""The embedder: a sentence-transformers model behind LangChain's `Embeddings`."""

import asyncio
import hashlib
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from langchain_core.embeddings import Embeddings

from llm.models import resolve
from llm.options import EmbedderOptions
from llm.passes import PASS_TOKENS, Cores, Passes, batches, load, result_of
from llm.tokens import ModelTokens

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PROMPTS: dict[str, list[str]] = {"query": ["query"], "document": ["document", "passage", "corpus"]}
"""The names that models' configurations give to the two prompts; sentence-transformers fills in empty ones."""
TOKENIZED = 1024
"""Texts tokenised at a time: their tokens' offsets take far more memory than the texts."""

TOO_LONG = (
    "%d of %d texts are longer than the %d tokens that %s reads, the longest has %d: what comes after them is not in "
    "the vector and will not be found; cut texts to `max_tokens` first"
)

Kind = Literal["query", "document"]
Vectors = dict[str, list[float]]

log = logging.getLogger(__name__)


class Embedder(Embeddings):
    """Normalised vectors of a sentence-transformers model, with the prompts that the model's own configuration names.

    A text longer than the model's limit is cut by the model, which a warning tells with its numbers, once a call; cut
    documents to `max_tokens` first. Equal texts of a call are embedded once. What a text is batched with changes its
    vector by less than 1e-5 in float32; bfloat16 keeps the cosine to that above 0.999 (MiniLM: 0.9998).

    Loading waits until the first text (5–10 s): a run that embeds nothing never imports torch. Threads and event loops
    may share an embedder: questions that come together share a pass, and go before the next batch of documents.
    """

    def __init__(self, options: EmbedderOptions = EmbedderOptions()) -> None:  # noqa: B008 (frozen)
        self.options = options
        self._loading = threading.Lock()
        self._passes: Passes[str, list[float]] = Passes(self._embed_queries, "embedder")
        self._cores = Cores(1)

    def __reduce__(self) -> "tuple[type[Embedder], tuple[EmbedderOptions]]":
        """Pickled, it is its options: a worker process that only counts tokens loads no model."""
        return type(self), (self.options,)

    @cached_property
    def _folder(self) -> str:
        return resolve(self.options.model)

    @cached_property
    def _loaded(self) -> "SentenceTransformer":
        import torch
        from sentence_transformers import SentenceTransformer

        from llm.unpadded import Unsupported, make_unpadded

        model = load(SentenceTransformer, self.options.model, self.options.device)
        if self.options.device != "cpu" or model.dtype != torch.bfloat16:
            return model
        try:
            make_unpadded(model)
        except Unsupported as error:
            log.info("%s is run with padding: %s", self.options.model, error)
            return load(SentenceTransformer, self.options.model, self.options.device)
        # Its many small products gain less from a second core than a second batch does.
        self._cores = Cores(torch.get_num_threads())
        return model

    @property
    def _model(self) -> "SentenceTransformer":
        with self._loading:
            return self._loaded

    @cached_property
    def tokens(self) -> ModelTokens:
        """The model's tokens, for a process that only cuts texts."""
        return ModelTokens(self._folder)

    @cached_property
    def max_tokens(self) -> int:
        """How many tokens of a document's own text fit, the document prompt and special tokens taken off."""
        return self._limit - len(self.tokens.tokenizer.encode(self._prompt("document")).ids)

    @property
    def _limit(self) -> int:
        return self._model.max_seq_length or 512

    def _prompt(self, kind: Kind) -> str:
        prompts = self._model.prompts
        return next((prompt for name in PROMPTS[kind] if (prompt := prompts.get(name))), "")

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """What makes two vectors comparable: name, and a hash over samples of the model's files. Loads no model.

        The files hold the weights, the dimension, the prompts, the pooling and the limit in tokens.
        """
        folder = Path(self._folder)
        if not folder.is_dir():  # a hub id: its cached snapshot's folder is the revision
            from huggingface_hub import snapshot_download

            folder = Path(snapshot_download(self._folder))
        digest = hashlib.sha256()
        for file in sorted(path for path in folder.rglob("*") if path.suffix in {".json", ".safetensors", ".bin"}):
            size = file.stat().st_size
            digest.update(f"{file.relative_to(folder)} {size} ".encode())
            with file.open("rb") as stream:
                for at in range(0, size, max(2**16, size // 16)):  # all of a small file, 1 MiB of a large one
                    stream.seek(at)
                    digest.update(stream.read(2**16))
        return {"model": self.options.model, "revision": digest.hexdigest()[:16]}

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The character span of each of the text's tokens, without special tokens, in order."""
        return self.tokens.offsets(text)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One normalised vector for each text, in order. Other callers get in between its batches."""
        vectors = dict(chain.from_iterable(some.items() for some in self.embed_by_passes(texts)))
        return [list(vectors[text]) for text in texts]

    def embed_by_passes(self, texts: list[str]) -> Iterator[Vectors]:
        """The same vectors by their texts, those of each forward pass when it ends: for who shows how far it is."""
        running: set[Future[Vectors]] = set()
        for some in self._batches(texts, "document"):
            if len(running) == self._cores.count:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (one.result() for one in done)
            running.add(result_of(self._passes.alone(self._begin, some, "document")))
        yield from (result_of(one) for one in as_completed(running))

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """`embed_documents` off the event loop; when cancelled, no further batch is begun."""
        vectors: Vectors = {}
        running: set[asyncio.Future[Vectors]] = set()
        for some in await asyncio.to_thread(self._batches, texts, "document"):
            if len(running) == self._cores.count:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                vectors.update(chain.from_iterable(one.result().items() for one in done))
            begun = await asyncio.wrap_future(self._passes.alone(self._begin, some, "document"))
            running.add(asyncio.wrap_future(begun))
        vectors.update(chain.from_iterable([(await one).items() for one in running]))
        return [list(vectors[text]) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """The normalised vector of a question; questions that come while the model is busy share the next pass."""
        return result_of(self._passes.share([text]))[0]

    async def aembed_query(self, text: str) -> list[float]:
        """`embed_query` off the event loop; a question whose caller is cancelled before its pass is left out of it."""
        return (await asyncio.wrap_future(self._passes.share([text])))[0]

    def _embed_queries(self, texts: list[str]) -> list[list[float]]:
        running = [self._begin(some, "query") for some in self._batches(texts, "query")]
        vectors = dict(chain.from_iterable(one.result().items() for one in running))
        return [list(vectors[text]) for text in texts]

    def _batches(self, texts: list[str], kind: Kind) -> list[list[str]]:
        """The different ones of the texts, in batches for one forward pass each."""
        if isinstance(texts, str):
            raise TypeError("texts is one text, whose characters would be embedded one by one: give a list")
        different = list(dict.fromkeys(texts))
        lengths = self._lengths(different, kind) if different else []
        fair = max(PASS_TOKENS, -(-sum(lengths) // self._cores.count))  # a few questions are work for every core too
        budget = self.options.batch_tokens if self._cores.count == 1 else min(fair, self.options.batch_tokens)
        return [[different[row] for row in rows] for rows in batches(lengths, budget)]

    def _lengths(self, texts: list[str], kind: Kind) -> list[int]:
        """What the model reads of each text, in tokens, prompt and special ones included; warns where it is not all."""
        prompt, limit, lengths = self._prompt(kind), self._limit, []
        for start in range(0, len(texts), TOKENIZED):
            prompted = [prompt + text for text in texts[start : start + TOKENIZED]]
            lengths += [len(encoding.ids) for encoding in self.tokens.tokenizer.encode_batch_fast(prompted)]
        if too_long := sum(length > limit for length in lengths):
            log.warning(TOO_LONG, too_long, len(texts), limit, self.options.model, max(lengths))
        return [min(length, limit) for length in lengths]

    def _begin(self, texts: list[str], kind: Kind) -> "Future[Vectors]":
        """Begin a forward pass as soon as a core is free; for the thread of passes."""
        return self._cores.begin(self._encode, texts, kind)

    def _encode(self, texts: list[str], kind: Kind) -> Vectors:
        """One forward pass."""
        import numpy

        encode = self._model.encode_query if kind == "query" else self._model.encode_document
        # Normalised here, in float32: in the model's own bfloat16 a length of 1 is only within 0.004.
        vectors = encode(texts, prompt=self._prompt(kind), batch_size=len(texts), show_progress_bar=False)
        lengths = numpy.linalg.norm(vectors, axis=1, keepdims=True)
        return dict(zip(texts, (vectors / numpy.maximum(lengths, 1e-12)).tolist(), strict=True))
