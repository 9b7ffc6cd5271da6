"""Where vLLM 0.26 to 0.33 keeps what we use of it: the only file that imports vLLM, at the first use of a name.

`vllm_names.AsyncLLM` imports vLLM (7–12 s) and returns the class. `python -m tests.vllm_versions WHEEL` looks all that
is named here up in the source of another version.
"""

from importlib import import_module
from typing import Any

NAMES: dict[str, tuple[str, ...]] = {
    "AsyncEngineArgs": ("vllm.engine.arg_utils",),
    "AsyncLLM": ("vllm.v1.engine.async_llm",),
    "AsyncMPClient": ("vllm.v1.engine.core_client",),
    "BeamSearchOnlineMixin": ("vllm.entrypoints.generate.beam_search.online",),
    "BeamSearchParams": ("vllm.sampling_params",),
    "ChatCompletionRequest": ("vllm.entrypoints.openai.chat_completion.protocol",),
    "CompletionOutput": ("vllm.outputs",),
    "DelegatingParser": ("vllm.parser.abstract_parser",),
    "DeltaFunctionCall": ("vllm.entrypoints.generate.base.protocol", "vllm.entrypoints.openai.engine.protocol"),
    "DeltaMessage": ("vllm.entrypoints.generate.base.protocol", "vllm.entrypoints.openai.engine.protocol"),
    "DeltaToolCall": ("vllm.entrypoints.generate.base.protocol", "vllm.entrypoints.openai.engine.protocol"),
    "EngineDeadError": ("vllm.v1.engine.exceptions",),
    "EngineGenerateError": ("vllm.v1.engine.exceptions",),
    "Executor": ("vllm.v1.executor.abstract",),
    "FunctionCall": ("vllm.entrypoints.generate.base.protocol", "vllm.entrypoints.openai.engine.protocol"),
    "GracefulHTTPError": ("vllm.exceptions",),
    "LoRAConfig": ("vllm.config.lora",),
    "LoRARequest": ("vllm.lora.request",),
    "Logprob": ("vllm.logprobs",),
    "MaxLoRARanks": ("vllm.config.lora",),
    "ModelConfig": ("vllm.config.model",),
    "MultiprocExecutor": ("vllm.v1.executor.multiproc_executor",),
    "OutputProcessor": ("vllm.v1.engine.output_processor",),
    "ParserManager": ("vllm.parser", "vllm.parser.parser_manager"),
    "Platform": ("vllm.platforms.interface",),
    "ReasoningParser": ("vllm.reasoning",),
    "ReasoningParserManager": ("vllm.reasoning",),
    "RequestOutput": ("vllm.outputs",),
    "RequestOutputCollector": ("vllm.v1.engine.output_processor",),
    "RequestOutputKind": ("vllm.sampling_params",),
    "SamplingParams": ("vllm.sampling_params",),
    "StructuredOutputsConfig": ("vllm.config.structured_outputs",),
    "StructuredOutputsParams": ("vllm.sampling_params",),
    "ToolParser": ("vllm.tool_parsers",),
    "ToolParserManager": ("vllm.tool_parsers",),
    "UniProcExecutor": ("vllm.v1.executor.uniproc_executor",),
    "VLLMClientError": ("vllm.exceptions",),
    "VllmConfig": ("vllm.config", "vllm.config.vllm"),
    "cached_tokenizer_from_config": ("vllm.tokenizers",),
    "current_platform": ("vllm.platforms",),
    "tokens_input": ("vllm.inputs",),
}
"""Modules that hold a name, the newest version's first."""

USES: dict[str, tuple[str, ...]] = {
    "AsyncEngineArgs": (
        "(*, model, served_model_name, max_model_len, dtype, tensor_parallel_size, scheduling_policy, use_tqdm_on_load,"
        " structured_outputs_config, reasoning_parser, enforce_eager, kv_cache_memory_bytes, max_num_seqs, block_size,"
        " max_num_batched_tokens, distributed_executor_backend, gpu_memory_utilization, enable_lora, max_lora_rank,"
        " max_loras, max_cpu_loras)",
        "create_engine_config()",
    ),
    "AsyncLLM": (
        "(*, vllm_config, executor_class, log_stats, log_requests)",
        "__del__()",
        "_run_output_handler()",
        "abort(request_id)",
        "add_lora(lora_request)",
        "add_request(request_id, prompt, params, *, lora_request, priority, reasoning_ended)",
        "check_health()",
        "engine_core",
        "errored",
        "generate(prompt, sampling_params, request_id, *, priority)",
        "get_num_unfinished_requests()",
        "get_tokenizer()",
        "model_config",
        "output_handler",
        "output_processor",
        "remove_lora(lora_id)",
        "renderer",
        "shutdown()",
        "vllm_config",
    ),
    "AsyncMPClient": ("utility_results",),
    "BeamSearchOnlineMixin": ("beam_search(prompt, request_id, params, *, lora_request)", "engine_client", "renderer"),
    "BeamSearchParams": (
        "(*, beam_width, max_tokens, ignore_eos, temperature, length_penalty, include_stop_str_in_output)",
    ),
    "ChatCompletionRequest": (
        "(*, messages, tools, tool_choice, parallel_tool_calls, structured_outputs)",
        "skip_special_tokens",
        "structured_outputs",
        "tool_choice",
        "tools",
    ),
    "CompletionOutput": (
        *("cumulative_logprob", "finish_reason", "index", "logprobs", "stop_reason", "text", "token_ids"),
    ),
    "DelegatingParser": (
        "(tokenizer, tools, *, chat_template_kwargs)",
        "adjust_request(request)",
        "is_reasoning_end(input_ids)",
        "parse(model_output, request, *, enable_auto_tools)",
        "parse_delta(delta_text, delta_token_ids, request, *, prompt_token_ids, finished)",
        "reasoning_parser",
        "tool_parser",
    ),
    "DeltaFunctionCall": ("arguments", "name"),
    "DeltaMessage": ("content", "reasoning", "tool_calls"),
    "DeltaToolCall": ("function", "id", "index"),
    "EngineDeadError": ("()",),
    "Executor": ("get_class(vllm_config)",),
    "FunctionCall": ("arguments", "id", "name"),
    "LoRAConfig": ("max_lora_rank", "max_loras"),
    "LoRARequest": ("(*, lora_name, lora_int_id, lora_path)", "lora_int_id"),
    "Logprob": ("decoded_token", "logprob", "rank"),
    "ModelConfig": ("get_diff_sampling_param()", "max_model_len"),
    "OutputProcessor": ("request_states",),
    "ParserManager": ("get_parser(*, tool_parser_name, reasoning_parser_name, enable_auto_tools)",),
    "Platform": ("is_cpu()",),
    "ReasoningParser": ("reasoning_end_str", "reasoning_start_str"),
    "ReasoningParserManager": ("lazy_parsers", "reasoning_parsers"),
    "RequestOutput": ("finished", "num_cached_tokens", "outputs", "prompt_logprobs"),
    "RequestOutputCollector": ("get()", "get_nowait()"),
    "RequestOutputKind": ("DELTA",),
    "SamplingParams": ("(*, output_kind)", "clone()"),
    "StructuredOutputsConfig": ("(*, backend, disable_any_whitespace)",),
    "StructuredOutputsParams": (
        "(*, json, regex, choice, grammar, json_object, structural_tag, disable_any_whitespace,"
        " disable_additional_properties, whitespace_pattern)",
    ),
    "ToolParser": ("supports_required_and_named",),
    "ToolParserManager": ("lazy_parsers", "tool_parsers"),
    "VllmConfig": ("lora_config", "model_config"),
    "cached_tokenizer_from_config": ("(model_config)",),
    "tokens_input": ("(prompt_token_ids, *, cache_salt)",),
}
"""What we use of a name, as it would be declared: attributes and calls, a call of the name itself in bare brackets."""

ENVIRONMENT = ("VLLM_LOGGING_LEVEL", "VLLM_NO_USAGE_STATS", "VLLM_RPC_BASE_PATH", "VLLM_WORKER_MULTIPROC_METHOD")
"""Variables that vLLM reads and we set."""

SINCE = {"AsyncLLM.get_num_unfinished_requests": "0.29", "GracefulHTTPError": "0.29", "VLLMClientError": "0.27"}
"""What of this older versions lack, and the first version that has it."""

STAND_INS: dict[str, Any] = {"GracefulHTTPError": (), "VLLMClientError": ValueError}
"""What older versions have for a name, in an `except` or `isinstance`: they had no limit on queued requests."""


def unfinished_requests(llm: Any) -> int:
    """Requests of an AsyncLLM that run or wait."""
    if hasattr(llm, "get_num_unfinished_requests"):
        return llm.get_num_unfinished_requests()
    return len(llm.output_processor.request_states)


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(name)
    for place in NAMES[name]:
        module = _module(place)
        if hasattr(module, name):
            return getattr(module, name)
    if name in STAND_INS:
        return STAND_INS[name]
    raise ImportError(f"this version of vLLM has no {name} in {', '.join(NAMES[name])}: install vLLM 0.26 to 0.33")


def _module(place: str) -> Any:
    """A module of vLLM; None where this version has none. Raises ImportError where vLLM cannot be imported."""
    try:
        return import_module(place)
    except ModuleNotFoundError as error:
        if error.name == "vllm":
            raise ImportError("vLLM is not installed: `make install`") from error
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise  # a module that vLLM itself needs
        return None
