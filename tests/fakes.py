"""Stand-ins for models: deterministic, with no weights."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from llm.options import SamplingOptions
from llm.protocol import Delta, EngineStopping

TOKEN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+|[^\w\s]")


class WordCountEmbedder:
    """Counts words, hashed into places and normalised: texts that share words are near each other.

    `embedded` counts the documents' texts that it has embedded.
    """

    def __init__(self, name: str = "word-count", max_tokens: int = 64, dimension: int = 256) -> None:
        self.dimension = dimension
        self.fingerprint = {"model": name, "revision": "1"}
        self.max_tokens = max_tokens
        self.embedded = 0

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """One token for each word, each CJK character and each mark."""
        return [match.span() for match in TOKEN.finditer(text)]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.embedded += len(texts)
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        counts = Counter(self._place(token.lower()) for token in TOKEN.findall(text))
        length = math.sqrt(sum(count**2 for count in counts.values()))
        return [counts[place] / length if length else 0.0 for place in range(self.dimension)]

    def _place(self, token: str) -> int:
        return int.from_bytes(hashlib.blake2b(token.encode(), digest_size=4).digest()) % self.dimension


CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer(chat_template: str = CHATML, special: tuple[str, ...] = ("<|im_start|>", "<|im_end|>")) -> Any:
    """A real transformers tokenizer, one token a byte, with `<s>` before every text encoded with special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: at for at, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", *special)])
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", additional_special_tokens=[*special])
    wrapped.chat_template = chat_template
    return wrapped


@dataclass
class Submitted:
    """A request as the scripted engine got it."""

    prompt_ids: list[int]
    sampling: SamplingOptions
    adapter: str | None = None
    reasoning_ended: bool | None = None

    @property
    def priority(self) -> int:
        return self.sampling.priority


class ScriptedEngine:
    """An engine that says what it is told: one reply for each request, the last one for all that follow.

    A reply is a string, cut into its words, or an exception, raised in place of the answer's end. `gate` (when set to
    an asyncio.Event) holds back everything after the first `before_gate` words; `submitted` lists what came in.
    """

    model = "scripted"
    parameters: int | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None

    def __init__(self, *replies: str | Exception, max_model_len: int = 4096, tokenizer: Any = None) -> None:
        self.max_model_len = max_model_len
        self.tokenizer = tokenizer or byte_tokenizer()
        self.reset(*replies)

    def reset(self, *replies: str | Exception) -> None:
        """Forget everything but the loop, the window and the tokenizer."""
        self.replies = list(replies or ["The answer is 42."])
        self.submitted: list[Submitted] = []
        self.open: set[ScriptedGeneration] = set()
        self.gate: asyncio.Event | None = None
        self.before_gate = 0
        self.stopping = False
        self.refusal: Exception | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop on which the first request came, or the running one."""
        if not hasattr(self, "_loop"):
            self._loop = asyncio.get_running_loop()
        return self._loop

    @loop.setter
    def loop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @property
    def unfinished(self) -> int:
        return len(self.open)

    async def submit(
        self,
        prompt_ids: list[int],
        sampling: SamplingOptions,
        *,
        adapter: str | None = None,
        reasoning_ended: bool | None = None,
    ) -> ScriptedGeneration:
        if self.stopping:
            raise EngineStopping("the service is stopping and takes no new request")
        if self.refusal:
            raise self.refusal
        self.submitted.append(Submitted(prompt_ids, sampling, adapter, reasoning_ended))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        generation = ScriptedGeneration(self, reply, sampling)
        self.open.add(generation)
        return generation

    async def health(self) -> None:
        if self.stopping:
            raise EngineStopping("the service is stopping")

    async def stop_accepting(self) -> None:
        self.stopping = True
        for generation in self.open:
            generation.stopped.set()


class ScriptedGeneration:
    """One request of the scripted engine."""

    def __init__(self, engine: ScriptedEngine, reply: str | Exception, sampling: SamplingOptions) -> None:
        self._engine, self._reply, self._sampling = engine, reply, sampling
        self.stopped = asyncio.Event()
        self._deltas = self._iterate()

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self._deltas

    async def _iterate(self) -> AsyncGenerator[Delta, None]:
        if isinstance(self._reply, Exception):
            yield Delta("Half an", (1, 2))
            raise self._reply
        words = re.findall(r"\S+\s*|\s+", self._reply) or [""]
        cut = words[: self._sampling.max_tokens]
        for at, word in enumerate(cut):
            if self._engine.gate and at >= self._engine.before_gate:
                await self._pass_gate(self._engine.gate)
            last = at == len(cut) - 1
            reason = ("length" if len(cut) < len(words) else "stop") if last else None
            yield Delta(word, (at,), reason, cached_tokens=3)
        self._engine.open.discard(self)

    async def _pass_gate(self, gate: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (gate, self.stopped)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self.stopped.is_set():
            raise EngineStopping("the answer was broken off because the service is stopping")

    async def aclose(self) -> None:
        self._engine.open.discard(self)
        await self._deltas.aclose()
