"""Use vLLM's async engine, which `llm.starting` starts and watches; with it this is what knows vLLM's API."""

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, cast

from llm import vllm_names
from llm.adapters import Adapters, Version, base_of
from llm.bridge import LoopThread
from llm.options import EngineOptions, SamplingOptions
from llm.protocol import AdapterRefused, Delta, EngineStopping, EngineUnavailable, Generation
from llm.reading.parsers import checked_parsers
from llm.starting.life import Life, lived
from llm.translation import beam_search_params, delta_of, prompt_of, refusal_of, sampling_params

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)


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
        self.tool_call_parser, self.reasoning_parser = checked_parsers(options, self.tokenizer)
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
                prompt_of(prompt_ids, sampling),
                sampling_params(sampling, self._defaults, prompt_tokens=len(prompt_ids), window=self.max_model_len),
                lora_request=request.adapter and request.adapter.request,
                priority=sampling.priority,
                reasoning_ended=True if reasoning_ended is None else reasoning_ended,
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
            return refusal_of(error)
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
                prompt_of(prompt_ids, sampling),
                f"groundwell-{uuid.uuid4().hex}",
                beam_search_params(sampling, prompt_tokens=len(prompt_ids), window=self.max_model_len),
                lora_request=version and version.request,
            )
            outputs = [output async for output in found]
        except EngineStopping:
            raise
        except Exception as error:
            raise self._translated(error) from error
        finally:
            await self.adapters.leave(version)
        beams = [delta_of(choice, outputs[-1]) for choice in outputs[-1].outputs[: sampling.n]]
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
            self._pending.append(delta_of(choice, output))

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
