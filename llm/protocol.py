"""What an engine is to those who use it: requests in, deltas out, and how it fails. Knows no vLLM."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from llm.options import SamplingOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added: text (may be empty while a character or stop string is incomplete) and its token ids.

    `finish_reason` is None until the last delta, then vLLM's: stop, length or repetition; `stop_reason` is the stop
    string or token id, None for the end token. `cached_tokens` of the prompt came from the prefix cache.
    """

    text: str
    token_ids: Sequence[int]
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    cached_tokens: int = 0


class Generation(Protocol):
    """One admitted request: iterate its deltas; `aclose` at any moment aborts it."""

    def __aiter__(self) -> AsyncIterator[Delta]: ...

    async def aclose(self) -> None: ...


class EngineLike(Protocol):
    """What the chat model needs of an engine; `tests/fakes.py` holds a scripted one."""

    model: str
    max_model_len: int
    loop: asyncio.AbstractEventLoop
    tokenizer: "PreTrainedTokenizerBase"
    parameters: int | None

    async def submit(self, prompt_ids: list[int], sampling: SamplingOptions, *, priority: int = NORMAL) -> Generation:
        """Hand token ids to the engine; returns once it has admitted them. Call on `loop`."""
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
