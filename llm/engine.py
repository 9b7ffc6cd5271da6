"""Start, use and stop vLLM's async engine: the only file that knows vLLM's API (0.32)."""

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, cast

from llm.bridge import LoopThread
from llm.models import NOT_HERE, parameter_count, resolve
from llm.options import EngineOptions, SamplingOptions, refuse_unknown
from llm.protocol import (
    NORMAL,
    Delta,
    EngineBusy,
    EngineStartFailed,
    EngineStopping,
    EngineUnavailable,
    Generation,
    InvalidRequest,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm.config import VllmConfig
    from vllm.v1.engine.async_llm import AsyncLLM


class Engine:
    """vLLM's AsyncLLM, bound to the event loop it was started on."""

    def __init__(self, llm: "AsyncLLM", options: EngineOptions, parameters: int | None) -> None:
        self._llm = llm
        self._stopping = False
        self._open: dict[str, _Request] = {}
        self._defaults = llm.model_config.get_diff_sampling_param()
        self.model = options.model
        self.parameters = parameters
        self.max_model_len: int = llm.model_config.max_model_len
        self.tokenizer = cast("PreTrainedTokenizerBase", llm.get_tokenizer())
        self.loop = asyncio.get_running_loop()

    @classmethod
    @asynccontextmanager
    async def start(cls, options: EngineOptions) -> AsyncIterator["Engine"]:
        """Start vLLM (20–40 s on a CPU), stop it at the end of the block. Raises EngineStartFailed, ModelNotFound."""
        llm, parameters = await asyncio.to_thread(_start, options)
        try:
            yield cls(llm, options, parameters)
        finally:
            # AsyncLLM.shutdown blocks for seconds; on the loop it would hold up the last bytes of the streams.
            await asyncio.shield(asyncio.to_thread(llm.shutdown))

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
    def unfinished(self) -> int:
        """Requests running or waiting, by vLLM's own count."""
        return self._llm.get_num_unfinished_requests()

    async def submit(self, prompt_ids: list[int], sampling: SamplingOptions, *, priority: int = NORMAL) -> Generation:
        """Hand token ids to vLLM; returns once it has admitted them.

        Raises InvalidRequest, EngineBusy, EngineUnavailable or EngineStopping; nothing has then been started.
        """
        if self._stopping:
            raise EngineStopping("the service is stopping and takes no new request")
        from vllm.inputs import tokens_input

        request = _Request(self, f"groundwell-{uuid.uuid4().hex}")
        self._open[request.id] = request
        try:
            params = _sampling_params(sampling, self._defaults)
            request.outputs = await self._llm.add_request(
                request.id, tokens_input(prompt_ids), params, priority=priority
            )
        except BaseException as error:
            await request.aclose()
            if isinstance(error, Exception):
                raise _translated(error) from error
            raise
        return request

    async def health(self) -> None:
        """Return when the engine can answer. Raises EngineUnavailable or EngineStopping."""
        if self._stopping:
            raise EngineStopping("the service is stopping")
        try:
            await self._llm.check_health()
        except Exception as error:
            raise _translated(error) from error

    async def stop_accepting(self) -> None:
        """Take nothing new and break off what runs: its iterators raise EngineStopping."""
        self._stopping = True
        await self._llm.abort(list(self._open))


class _Request:
    """A request that vLLM has admitted, iterated as deltas."""

    def __init__(self, engine: Engine, request_id: str) -> None:
        self.id = request_id
        self.outputs: Any = None
        self._engine = engine
        self._finished = False

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        if self._finished:
            raise StopAsyncIteration
        try:
            # As AsyncLLM.generate does: no task switch while outputs are at hand.
            output = self.outputs.get_nowait() or await self.outputs.get()
        except Exception as error:
            raise self._broken_off(_translated(error)) from error
        self._finished = output.finished
        choice = output.outputs[0]
        if choice.finish_reason in ("abort", "error"):
            raise self._broken_off(EngineUnavailable(f"vLLM ended the request with {choice.finish_reason!r}"))
        return Delta(
            choice.text, choice.token_ids, choice.finish_reason, choice.stop_reason, output.num_cached_tokens or 0
        )

    def _broken_off(self, error: Exception) -> Exception:
        if self._engine._stopping:
            return EngineStopping("the answer was broken off because the service is stopping")
        return error

    async def aclose(self) -> None:
        self._engine._open.pop(self.id, None)
        if not self._finished:
            self._finished = True
            await self._engine._llm.abort(self.id)


def _start(options: EngineOptions) -> tuple["AsyncLLM", int | None]:
    folder = resolve(options.model)
    _prepare_environment()
    try:
        config = _configure(options, folder)
        if options.fast_start:
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"  # create_engine_config set it to spawn on CPU
        return _quiet_llm().from_vllm_config(config), parameter_count(folder)
    except OSError as error:
        raise EngineStartFailed(f"the model {options.model} cannot be loaded: {NOT_HERE}") from error
    except (ValueError, TypeError, RuntimeError) as error:
        raise EngineStartFailed(f"vLLM did not start with {options.model}: {error}") from error


def _prepare_environment() -> None:
    """Set what vLLM reads from the environment when it is imported, unless the user has set it already."""
    defaults = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "PYTHONWARNINGS": "ignore::FutureWarning",  # for vLLM's processes: torch's deprecations are not the user's
        # One core stays free for the service: two OpenMP threads on two cores collapse under any other load.
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 2) - 1)),
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def _configure(options: EngineOptions, folder: str) -> "VllmConfig":
    from vllm import AsyncEngineArgs
    from vllm.platforms import current_platform

    for name in options.vllm:
        refuse_unknown(name, AsyncEngineArgs.__dataclass_fields__, what="vllm.AsyncEngineArgs")
    given: dict[str, Any] = {
        "model": folder,
        "served_model_name": options.model,  # else the metrics show the folder
        "max_model_len": options.max_model_len,
        "dtype": options.dtype,
        "tensor_parallel_size": options.tensor_parallel_size,
        "scheduling_policy": "priority",  # else vLLM ignores a request's priority
        "use_tqdm_on_load": False,
    }
    given |= _on_cpu(options) if current_platform.is_cpu() else _on_gpu(options)
    return AsyncEngineArgs(**(given | options.vllm)).create_engine_config()


def _on_cpu(options: EngineOptions) -> dict[str, Any]:
    # The first request with logprobs would otherwise compile C++ for up to 27 s, or kill an engine without compiler.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    fast = _has_fast_bfloat16()
    given: dict[str, Any] = {
        "enforce_eager": True,
        "kv_cache_memory_bytes": int(options.kv_cache_gib * 2**30),
        "max_num_seqs": options.max_num_seqs or 16,
        # A step cannot be broken off: so many tokens of prompt take about half a second, which everybody else waits.
        "max_num_batched_tokens": 512 if fast else 128,
        "block_size": 32,  # the default of 128 would cache prefixes in steps of 128 tokens only
    }
    if options.dtype == "auto" and not fast:
        given["dtype"] = "float32"
    if options.tensor_parallel_size == 1:
        # Without a separate worker process, which would spin on a second core.
        given["distributed_executor_backend"] = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
    return given


def _has_fast_bfloat16() -> bool:
    """Whether the CPU has AVX-512; without it bfloat16 reads prompts 3 times slower than float32."""
    import torch

    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _on_gpu(options: EngineOptions) -> dict[str, Any]:
    given: dict[str, Any] = {"gpu_memory_utilization": options.gpu_memory_utilization}
    if options.max_num_seqs:
        given["max_num_seqs"] = options.max_num_seqs
    return given


def _quiet_llm() -> type["AsyncLLM"]:
    from vllm.v1.engine.async_llm import AsyncLLM

    class QuietAsyncLLM(AsyncLLM):
        def __del__(self, _finalizing: Any = sys.is_finalizing) -> None:
            if not _finalizing():  # at interpreter exit the parent's __del__ fails with a TypeError
                super().__del__()

    return QuietAsyncLLM


def _sampling_params(sampling: SamplingOptions, defaults: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    given = sampling.model_dump(exclude_none=True)
    return SamplingParams(**(defaults | given), output_kind=RequestOutputKind.DELTA)


def _translated(error: Exception) -> Exception:
    """Return our exception for one of vLLM's; any other comes back as it is."""
    from vllm.exceptions import GracefulHTTPError, VLLMClientError
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    if isinstance(error, EngineDeadError):
        return EngineUnavailable("the vLLM engine has died: see its log, then restart the service")
    if isinstance(error, GracefulHTTPError):
        return EngineBusy(str(error))
    if isinstance(error, VLLMClientError):
        return InvalidRequest(str(error))
    if isinstance(error, EngineGenerateError):
        return InvalidRequest(f"vLLM refused the request: {error.__cause__ or error}")
    return error
