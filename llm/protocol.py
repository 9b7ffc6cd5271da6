"""What an engine is to those who use it: requests in, deltas out, and how it fails. Knows no vLLM."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from llm.options import SamplingOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from llm.adapters import Adapters

NORMAL, URGENT = 0, -1
"""Priorities of a request: lower goes first."""


class EngineStartFailed(Exception):
    """vLLM refused its options or died while it started."""


class EngineUnavailable(Exception):
    """The engine has died; the process has to be started again."""


class EngineStopping(Exception):
    """The engine is being stopped: nothing new is taken, what ran has been broken off."""


class EngineBusy(Exception):
    """vLLM's own limit on queued requests or tokens is reached."""


class InvalidRequest(ValueError):
    """vLLM refused the request's ids or sampling options."""


class UnknownAdapter(InvalidRequest):
    """No adapter of that name is loaded."""

    def __init__(self, name: str, loaded: Iterable[str]) -> None:
        super().__init__(f"no adapter {name!r} is loaded; loaded: {', '.join(loaded) or 'none'}")


class AdapterRefused(InvalidRequest):
    """A LoRA cannot be loaded; the engine and what it has loaded stay as they were."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that could stand at one place, with its natural log-probability (at most 0)."""

    token_id: int
    token: str
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One place: the token that stands there and the likeliest ones, best first."""

    chosen: Candidate
    top: Sequence[Candidate]


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to one choice: text (empty while a character or stop string is incomplete) and token ids.

    `finish_reason` is None until the choice's last delta, then vLLM's: stop, length or repetition; `stop_reason` is the
    stop string or token id, None for the end token. `cached_tokens` of the prompt came from the prefix cache.
    `logprobs` has one entry for each of `token_ids` where they were asked for; `cumulative_logprob` is the choice's
    sum so far. `prompt_logprobs` comes once, with None for the prompt's first token.
    """

    text: str
    token_ids: Sequence[int]
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    cached_tokens: int = 0
    index: int = 0
    logprobs: Sequence[TokenLogprobs] | None = None
    cumulative_logprob: float | None = None
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None


class Generation(Protocol):
    """One admitted request: iterate the deltas of its choices as they come; `aclose` at any moment aborts it."""

    def __aiter__(self) -> AsyncIterator[Delta]: ...

    async def aclose(self) -> None: ...


class EngineLike(Protocol):
    """What the chat model needs of an engine; `tests/fakes.py` holds a scripted one.

    `tool_call_parser` and `reasoning_parser` are vLLM's names of the model's output formats, None where it has none.
    """

    model: str
    max_model_len: int
    loop: asyncio.AbstractEventLoop
    tokenizer: "PreTrainedTokenizerBase"
    parameters: int | None
    tool_call_parser: str | None
    reasoning_parser: str | None
    adapters: "Adapters"

    async def submit(
        self,
        prompt_ids: list[int],
        sampling: SamplingOptions,
        *,
        adapter: str | None = None,
        reasoning_ended: bool | None = None,
    ) -> Generation:
        """Hand token ids to the engine; returns once it has admitted them. Call on `loop`.

        `adapter` is the name of a loaded LoRA. Of a model that reasons aloud, `reasoning_ended` says whether the prompt
        ends after the reasoning: a grammar holds from there on.
        """
        ...

    async def beam_search(
        self, prompt_ids: list[int], sampling: SamplingOptions, *, adapter: str | None = None
    ) -> list[Delta]:
        """The `sampling.n` best beams, best first, each as one delta. Call on `loop`."""
        ...

    async def health(self) -> None:
        """Return when the engine can answer. Raises EngineUnavailable or EngineStopping."""
        ...

    async def stop_accepting(self) -> None:
        """Take nothing new and break off what runs: its iterators raise EngineStopping."""
        ...

    @property
    def unfinished(self) -> int:
        """Requests running or waiting."""
        ...
