"""What vLLM is started with: its environment and its configuration."""

import logging
import os
from dataclasses import is_dataclass
from typing import Any, get_args

import psutil

from llm import vllm_names
from llm.adapters import lora_fields
from llm.models import has_fast_bfloat16, has_tiles
from llm.options import EngineOptions, refuse_unknown
from llm.reading.parsers import checked_parsers
from llm.starting.start_failure import plainly


def prepare_environment() -> None:
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
    if not (logger := logging.getLogger("vllm")).level:  # not configured yet: warnings of its import would be shown
        logger.setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())


def configure(options: EngineOptions, folder: str) -> Any:
    """The VllmConfig of the options: vLLM checks every value, nothing is started."""
    fields = vllm_names.AsyncEngineArgs.__dataclass_fields__
    for name in options.vllm:
        refuse_unknown(name, fields, what="vllm.AsyncEngineArgs")
    given: dict[str, Any] = {
        "model": folder,
        "served_model_name": options.model,  # else the metrics show the folder
        "max_model_len": options.max_model_len,
        "dtype": options.dtype,
        "tensor_parallel_size": options.tensor_parallel_size,
        "scheduling_policy": "priority",  # else vLLM ignores a request's priority
        "use_tqdm_on_load": False,
    }
    given |= _on_cpu(options) if vllm_names.current_platform.is_cpu() else _on_gpu(options)
    given |= options.vllm | lora_fields(options, folder)
    given["structured_outputs_config"] = _grammars(options.vllm.get("structured_outputs_config"))
    given |= {name: _as_object(name, value) for name, value in given.items() if isinstance(value, dict)}
    config = vllm_names.AsyncEngineArgs(**given).create_engine_config()
    _, reasoning = checked_parsers(options, vllm_names.cached_tokenizer_from_config(config.model_config))
    if reasoning is None:
        return config
    # vLLM has to know it too: a grammar holds after the reasoning only, and a budget of reasoning ends it.
    return vllm_names.AsyncEngineArgs(**given, reasoning_parser=reasoning).create_engine_config()


def _grammars(given: Any) -> Any:
    """vLLM's settings of grammars, with ours where the user has said nothing."""
    if given is not None and not isinstance(given, dict):
        return given
    # Of tool calls and schemas: else a small model fills `{}` with blanks without end.
    ours = {"disable_any_whitespace": True, "backend": "xgrammar"}
    compact = (given or {}).get("backend", "xgrammar") in ("xgrammar", "guidance")  # others refuse the option
    return (ours if compact else {}) | (given or {})


def _as_object(name: str, value: dict[str, Any]) -> Any:
    """A dict as the configuration class of its field: vLLM writes into some of them (the reasoning parser's name)."""
    declared = vllm_names.AsyncEngineArgs.__dataclass_fields__[name].type
    classes = [kind for kind in (declared, *get_args(declared)) if isinstance(kind, type) and is_dataclass(kind)]
    try:
        return classes[0](**value) if classes else value
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}.{plainly(error)}") from error


def _on_cpu(options: EngineOptions) -> dict[str, Any]:
    # The first request with logprobs would otherwise compile C++ for up to 27 s, or kill an engine without compiler.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    free, whole = (size / 2**30 for size in (psutil.virtual_memory().available, psutil.virtual_memory().total))
    if options.kv_cache_gib > free:  # vLLM's process would say so after 15 s
        needed = f"the KV cache needs {options.kv_cache_gib} GiB"
        raise ValueError(f"{needed}, {free:.1f} of {whole:.1f} GiB are free: lower kv_cache_gib")
    fast = has_fast_bfloat16()
    given: dict[str, Any] = {
        "enforce_eager": True,
        "kv_cache_memory_bytes": int(options.kv_cache_gib * 2**30),
        "max_num_seqs": options.max_num_seqs or 16,
        # A step cannot be broken off: so many tokens of prompt take about half a second, which everybody else waits.
        "max_num_batched_tokens": 512 if has_tiles() else 128,
        "block_size": 32,  # the default of 128 would cache prefixes in steps of 128 tokens only
    }
    if options.dtype == "auto" and not fast:
        given["dtype"] = "float32"
    if options.tensor_parallel_size == 1:
        # Without a separate worker process, which would spin on a second core.
        given["distributed_executor_backend"] = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
    return given


def _on_gpu(options: EngineOptions) -> dict[str, Any]:
    given: dict[str, Any] = {"gpu_memory_utilization": options.gpu_memory_utilization}
    if options.max_num_seqs:
        given["max_num_seqs"] = options.max_num_seqs
    return given
