"""Stand-ins for models: deterministic, with no weights."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from llm.adapters import Adapters
from llm.choices import whole
from llm.lora import BaseModel
from llm.options import SamplingOptions
from llm.protocol import Candidate, Delta, EngineStopping, TokenLogprobs

Reply = str | tuple[str, ...] | Exception

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


class ScriptedSlots:
    """vLLM as its adapters see it: each one added takes the first free slot, removed it leaves it.

    `failure` is raised by the next `add_lora`, which keeps its slot, as vLLM's does when a matrix does not fit. `gate`
    (when set to an asyncio.Event) holds both calls back. `ever_used` are the slots that are zero no more.
    """

    def __init__(self, slots: int = 4, *, max_rank: int = 16) -> None:
        limits = SimpleNamespace(max_loras=slots, max_lora_rank=max_rank)
        self.vllm_config = SimpleNamespace(lora_config=limits if slots else None)
        self.slots: list[int | None] = [None] * slots
        self.requests: dict[int, Any] = {}
        self.ever_used: set[int] = set()
        self.failure: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.errored = False

    async def add_lora(self, request: Any) -> bool:
        free = self.slots.index(None)
        self.slots[free] = request.lora_int_id
        self.requests[request.lora_int_id] = request
        self.ever_used.add(free)
        failure, self.failure = self.failure, None
        await self._pass_gate()
        if failure:
            raise failure
        return True

    async def remove_lora(self, number: int) -> bool:
        await self._pass_gate()
        if self.errored:
            raise RuntimeError("the engine is dead")
        self.slots[self.slots.index(number)] = None
        return bool(self.requests.pop(number))

    async def _pass_gate(self) -> None:
        await asyncio.sleep(0)
        if self.gate:
            await self.gate.wait()


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

    A reply is a string, cut into its words, a tuple of strings, one for each choice or beam, or an exception, raised in
    place of the answer's end. A word's log-probability is minus its length. `gate` (when set to an asyncio.Event) holds
    back everything after the first `before_gate` words; `submitted` lists what came in.
    """

    model = "scripted"
    parameters: int | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None

    def __init__(self, *replies: Reply, max_model_len: int = 4096, tokenizer: Any = None) -> None:
        self.max_model_len = max_model_len
        self.tokenizer = tokenizer or byte_tokenizer()
        self.reset(*replies)

    @cached_property
    def adapters(self) -> Adapters:
        """Real ones, on vLLM's slots for LoRA alone; `submit` takes any adapter's name."""
        return Adapters(ScriptedSlots(), BaseModel(self.model, {}), self.loop, new_request=SimpleNamespace)

    def reset(self, *replies: Reply) -> None:
        """Forget everything but the loop, the window and the tokenizer."""
        self.replies: list[Reply] = list(replies or ["The answer is 42."])
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

    async def beam_search(
        self, prompt_ids: list[int], sampling: SamplingOptions, *, adapter: str | None = None
    ) -> list[Delta]:
        beams: dict[int, list[Delta]] = defaultdict(list)
        async with aclosing(await self.submit(prompt_ids, sampling, adapter=adapter)) as generation:
            async for delta in generation:
                beams[delta.index].append(delta)
        best_first = sorted(map(whole, beams.values()), key=lambda beam: beam.cumulative_logprob or 0.0, reverse=True)
        return best_first[: sampling.n]

    async def health(self) -> None:
        if self.stopping:
            raise EngineStopping("the service is stopping")

    async def stop_accepting(self) -> None:
        self.stopping = True
        for generation in self.open:
            generation.stopped.set()


class _Words:
    """One choice, a token a word; the token's id is its place."""

    def __init__(self, text: str, index: int, sampling: SamplingOptions) -> None:
        self._all = re.findall(r"\S+\s*|\s+", text) or [""]
        self.cut = self._all[: sampling.max_tokens]
        self._index = index
        self._told = sampling.logprobs is not None or sampling.best_of is not None or sampling.use_beam_search
        self._prompt = [None] if sampling.prompt_logprobs is not None else None

    def delta(self, at: int) -> Delta:
        last = at == len(self.cut) - 1
        reason = ("length" if len(self.cut) < len(self._all) else "stop") if last else None
        made = Delta(self.cut[at], (at,), reason, None, 3, self._index, prompt_logprobs=None if at else self._prompt)
        return replace(made, **self._logprobs(at)) if self._told else made

    def _logprobs(self, at: int) -> dict[str, Any]:
        chosen = Candidate(at, self.cut[at], -float(len(self.cut[at])))
        so_far = -float(sum(map(len, self.cut[: at + 1])))
        return {"logprobs": [TokenLogprobs(chosen, [chosen])], "cumulative_logprob": so_far}


class ScriptedGeneration:
    """One request of the scripted engine."""

    def __init__(self, engine: ScriptedEngine, reply: Reply, sampling: SamplingOptions) -> None:
        self._engine, self._reply, self._sampling = engine, reply, sampling
        self.stopped = asyncio.Event()
        self._deltas = self._iterate()

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self._deltas

    async def _iterate(self) -> AsyncGenerator[Delta, None]:
        if isinstance(self._reply, Exception):
            yield Delta("Half an", (1, 2))
            raise self._reply
        width = self._sampling.best_of or self._sampling.n
        texts = self._reply if isinstance(self._reply, tuple) else (self._reply,) * width
        choices = [_Words(text, index, self._sampling) for index, text in enumerate(texts)]
        for at in range(max(len(words.cut) for words in choices)):
            if self._engine.gate and at >= self._engine.before_gate:
                await self._pass_gate(self._engine.gate)
            for words in choices:
                if at < len(words.cut):
                    yield words.delta(at)
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
