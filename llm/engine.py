"""Use vLLM's async engine: `llm.start` starts it, `llm.life` watches it; with them it is what knows vLLM's API."""

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, cast

from llm import vllm_names
from llm.adapters import Adapters, Version, base_of
from llm.bridge import LoopThread
from llm.life import Life, lived
from llm.options import EngineOptions, SamplingOptions
from llm.output import parsers_of
from llm.protocol import (
    AdapterRefused,
    Candidate,
    Delta,
    EngineBusy,
    EngineStopping,
    EngineUnavailable,
    Generation,
    InvalidRequest,
    TokenLogprobs,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

OURS = ("best_of", "use_beam_search", "length_penalty", "max_length", "priority", "cache_salt")
"""Sampling options that are not fields of vLLM's SamplingParams."""


class Engine:
    """vLLM's AsyncLLM, bound to the event loop it was started on."""

    def __init__(self, life: Life, options: EngineOptions) -> None:
        llm, self._life, self._options = life.started.llm, life, options
        self._stopping = False
        self._open: dict[str, _Request] = {}
        self._defaults = llm.model_config.get_diff_sampling_param()
        self.model = options.model
        self.parameters = life.started.parameters
        self.max_model_len: int = llm.model_config.max_model_len
        self.tokenizer = cast("PreTrainedTokenizerBase", llm.get_tokenizer())
        self.tool_call_parser, self.reasoning_parser = parsers_of(options, self.tokenizer)
        self.loop = asyncio.get_running_loop()
        self.adapters = Adapters(llm, base_of(options, life.started.folder), self.loop)

    @classmethod
    @asynccontextmanager
    async def start(cls, options: EngineOptions) -> AsyncIterator["Engine"]:
        """Start vLLM (20–40 s on a CPU), stop it at the end of the block. Raises EngineStartFailed, ModelNotFound.

        vLLM's process imports the main program again: a script needs `if __name__ == "__main__":` round what it does.
        `fast_start` forks instead, which needs no guard, but a process in which no other thread computes.
        """
        async with lived(options) as life:
            engine = cls(life, options)
            life.restarted = engine._restarted
            await engine.adapters.load_all(options.adapters)
            try:
                yield engine
            finally:
                engine._stopping = True

    @classmethod
    @contextmanager
    def start_in_thread(cls, options: EngineOptions) -> Iterator["Engine"]:
        """Start vLLM on a loop in a thread of its own, for callers that have no loop (scripts, notebooks, tests)."""
        with LoopThread() as thread:
            starting = cls.start(options)
            engine = thread.run(starting.__aenter__())
            try:
                yield engine
            finally:
                thread.run(starting.__aexit__(None, None, None))

    @property
    def _llm(self) -> Any:
        return self._life.started.llm

    async def _restarted(self) -> None:
        adapters = Adapters(self._llm, base_of(self._options, self._life.started.folder), self.loop)
        for adapter in self.adapters.list():
            try:
                await adapters.aload(adapter.name, adapter.folder)
            except AdapterRefused as error:
                log.error("after the restart of the engine: %s", error)
        self.adapters = adapters

    async def died(self) -> EngineUnavailable:
        """Return once vLLM is dead and is not started again. Raises EngineStopping when it is stopped instead."""
        return await self._life.died()

    @property
    def unfinished(self) -> int:
        """Requests running or waiting, by vLLM's own count."""
        return vllm_names.unfinished_requests(self._llm)

    async def submit(
        self,
        prompt_ids: list[int],
        sampling: SamplingOptions,
        *,
        adapter: str | None = None,
        reasoning_ended: bool | None = None,
    ) -> Generation:
        """Hand token ids to vLLM; returns once it has admitted them.

        Raises InvalidRequest (UnknownAdapter), EngineBusy, EngineUnavailable or EngineStopping; nothing has then been
        started.
        """
        self._check()
        request = _Request(self, f"groundwell-{uuid.uuid4().hex}", self.adapters.enter(adapter))
        self._open[request.id] = request
        try:
            request.outputs = await self._llm.add_request(
                request.id,
                _prompt(prompt_ids, sampling),
                _sampling_params(sampling, self._defaults, prompt_tokens=len(prompt_ids)),
                lora_request=request.adapter and request.adapter.request,
                priority=sampling.priority,
                reasoning_ended=reasoning_ended,
            )
        except BaseException as error:
            await request.aclose()
            if isinstance(error, Exception):
                raise self._translated(error) from error
            raise
        return request

    def _check(self) -> None:
        if self._stopping:
            raise EngineStopping("the service is stopping and takes no new request")
        self._life.check()

    def _translated(self, error: Exception) -> Exception:
        if not isinstance(error, vllm_names.EngineDeadError):
            return _translated(error)
        return EngineStopping("the engine is stopped") if self._stopping else EngineUnavailable(self._life.obituary())

    async def beam_search(
        self, prompt_ids: list[int], sampling: SamplingOptions, *, adapter: str | None = None
    ) -> list[Delta]:
        """The `sampling.n` best beams of width `best_of` (else `n`), best first, each as one delta. Raises as `submit`.

        vLLM's own search (`BeamSearchOnlineMixin`): one request a beam and token, its prompt is in the cache; the
        width is at most half of the engine's `max_logprobs`.
        """
        self._check()
        search = vllm_names.BeamSearchOnlineMixin.__new__(type("Search", (vllm_names.BeamSearchOnlineMixin,), {}))
        search.engine_client, search.renderer = _TokenByToken(self, sampling.priority), self._llm.renderer
        version = self.adapters.enter(adapter)
        try:
            found = search.beam_search(
                _prompt(prompt_ids, sampling),
                f"groundwell-{uuid.uuid4().hex}",
                _beam_search_params(sampling, prompt_tokens=len(prompt_ids)),
                lora_request=version and version.request,
            )
            outputs = [output async for output in found]
        except EngineStopping:
            raise
        except Exception as error:
            raise self._translated(error) from error
        finally:
            await self.adapters.leave(version)
        beams = [_delta(choice, outputs[-1]) for choice in outputs[-1].outputs[: sampling.n]]
        if beams[0].finish_reason in ("abort", "error"):
            raise EngineUnavailable(f"vLLM ended the search with {beams[0].finish_reason!r}")
        return beams

    async def health(self) -> None:
        """Return when the engine can answer. Raises EngineUnavailable or EngineStopping."""
        self._check()
        try:
            await self._llm.check_health()
        except Exception as error:
            raise self._translated(error) from error

    async def stop_accepting(self) -> None:
        """Take nothing new and break off what runs: its iterators raise EngineStopping."""
        self._stopping = True
        await self._llm.abort(list(self._open))


class _TokenByToken:
    """vLLM as its beam search sees it: each token of each beam is a request, and stopping ends it at the next one."""

    def __init__(self, engine: Engine, priority: int) -> None:
        self._engine, self._priority = engine, priority

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine._llm, name)

    def generate(self, prompt: Any, params: Any, request_id: str, **options: Any) -> AsyncIterator[Any]:
        if self._engine._stopping:
            raise EngineStopping("the answer was broken off because the service is stopping")
        return self._engine._llm.generate(prompt, params, request_id, **options, priority=self._priority)


class _Request:
    """A request that vLLM has admitted, iterated as deltas."""

    def __init__(self, engine: Engine, request_id: str, adapter: Version | None) -> None:
        self.id = request_id
        self.adapter = adapter
        self.outputs: Any = None
        self._engine = engine
        self._finished = False
        self._pending: deque[Delta] = deque()

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        while not self._pending:
            if self._finished:
                await self.aclose()
                raise StopAsyncIteration
            await self._receive()
        return self._pending.popleft()

    async def _receive(self) -> None:
        try:
            # As AsyncLLM.generate does: no task switch while outputs are at hand.
            output = self.outputs.get_nowait() or await self.outputs.get()
        except Exception as error:
            raise await self._broken_off(self._engine._translated(error)) from error
        self._finished = output.finished
        for choice in output.outputs:
            if choice.finish_reason in ("abort", "error"):
                raise await self._broken_off(EngineUnavailable(f"vLLM ended the request with {choice.finish_reason!r}"))
            self._pending.append(_delta(choice, output))

    async def _broken_off(self, error: Exception) -> Exception:
        await self.aclose()  # whoever asks again must not wait for ever
        if self._engine._stopping:
            return EngineStopping("the answer was broken off because the service is stopping")
        return error

    async def aclose(self) -> None:
        self._engine._open.pop(self.id, None)
        adapter, self.adapter = self.adapter, None
        try:
            if not self._finished:
                self._finished = True
                await self._engine._llm.abort(self.id)
        finally:
            await self._engine.adapters.leave(adapter)


def _prompt(prompt_ids: list[int], sampling: SamplingOptions) -> Any:
    return vllm_names.tokens_input(prompt_ids, cache_salt=sampling.cache_salt)


def _sampling_params(sampling: SamplingOptions, defaults: dict[str, Any], *, prompt_tokens: int) -> Any:
    given = defaults | sampling.model_dump(exclude_none=True, exclude=set(OURS))
    given["max_tokens"] = _room(sampling, prompt_tokens)
    if sampling.best_of and sampling.best_of > 1:
        given |= {"n": sampling.best_of, "logprobs": sampling.logprobs or 0}
    if sampling.structured_outputs is not None:
        given["structured_outputs"] = vllm_names.StructuredOutputsParams(**sampling.structured_outputs)
    return vllm_names.SamplingParams(**given, output_kind=vllm_names.RequestOutputKind.DELTA)


def _beam_search_params(sampling: SamplingOptions, *, prompt_tokens: int) -> Any:
    return vllm_names.BeamSearchParams(
        beam_width=sampling.best_of or sampling.n,
        max_tokens=_room(sampling, prompt_tokens),
        ignore_eos=sampling.ignore_eos,
        temperature=sampling.temperature,
        length_penalty=1.0 if sampling.length_penalty is None else sampling.length_penalty,
        include_stop_str_in_output=sampling.include_stop_str_in_output,
    )


def _room(sampling: SamplingOptions, prompt_tokens: int) -> int:
    if sampling.max_length is None:
        return sampling.max_tokens
    if prompt_tokens >= sampling.max_length:
        raise InvalidRequest(f"the prompt has {prompt_tokens} tokens, max_length {sampling.max_length} leaves no room")
    return min(sampling.max_tokens, sampling.max_length - prompt_tokens)


def _delta(choice: Any, output: Any) -> Delta:
    return Delta(
        choice.text,
        choice.token_ids,
        choice.finish_reason,
        choice.stop_reason,
        output.num_cached_tokens or 0,
        choice.index,
        _logprobs(choice),
        choice.cumulative_logprob,
        [_token_logprobs(place) for place in output.prompt_logprobs or ()] or None,
    )


def _logprobs(choice: Any) -> Sequence[TokenLogprobs] | None:
    if not choice.logprobs:
        return None
    places = zip(choice.token_ids, choice.logprobs, strict=False)  # a finished beam has one more: its end token
    return [TokenLogprobs(_candidate(token, place[token]), _best_first(place)) for token, place in places]


def _token_logprobs(place: Mapping[int, Any] | None) -> TokenLogprobs | None:
    if not place:
        return None
    token = next(iter(place))  # vLLM puts the token that stands there first
    return TokenLogprobs(_candidate(token, place[token]), _best_first(place))


def _best_first(place: Mapping[int, Any]) -> list[Candidate]:
    return [_candidate(token, place[token]) for token in sorted(place, key=lambda token: place[token].rank)]


def _candidate(token_id: int, found: Any) -> Candidate:
    return Candidate(token_id, found.decoded_token or "", found.logprob)


def _translated(error: Exception) -> Exception:
    """Return our exception for a refusal of vLLM's; any other comes back as it is."""
    if isinstance(error, vllm_names.GracefulHTTPError):
        return EngineBusy(str(error))
    if isinstance(error, (vllm_names.VLLMClientError, ValueError, TypeError)):
        return InvalidRequest(str(error))
    if isinstance(error, vllm_names.EngineGenerateError):
        return InvalidRequest(f"vLLM refused the request: {error.__cause__ or error}")
    return error
