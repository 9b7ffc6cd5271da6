"""Where vLLM 0.26 to 0.33 keeps the names that we use: the only file that imports vLLM, at the first use of a name.

`vllm_names.AsyncLLM` imports vLLM (7–12 s) and returns the class. tests/model/test_versions.py looks every name and
member up in the installed version and, statically, in the source of any other.
"""

from importlib import import_module
from typing import Any

NAMES: dict[str, tuple[str, ...]] = {
    "AsyncEngineArgs": ("vllm.engine.arg_utils",),
    "AsyncLLM": ("vllm.v1.engine.async_llm",),
    "BeamSearchOnlineMixin": ("vllm.entrypoints.generate.beam_search.online",),
    "BeamSearchParams": ("vllm.sampling_params",),
    "ChatCompletionRequest": ("vllm.entrypoints.openai.chat_completion.protocol",),
    "EngineDeadError": ("vllm.v1.engine.exceptions",),
    "EngineGenerateError": ("vllm.v1.engine.exceptions",),
    "GracefulHTTPError": ("vllm.exceptions",),
    "LoRARequest": ("vllm.lora.request",),
    "ParserManager": ("vllm.parser", "vllm.parser.parser_manager"),
    "RequestOutputKind": ("vllm.sampling_params",),
    "SamplingParams": ("vllm.sampling_params",),
    "StructuredOutputsParams": ("vllm.sampling_params",),
    "VLLMClientError": ("vllm.exceptions",),
    "current_platform": ("vllm.platforms",),
    "tokens_input": ("vllm.inputs",),
}
"""Modules that hold a name, the newest version's first."""

SINCE: dict[str, tuple[str, Any]] = {
    "GracefulHTTPError": ("0.32", ()),
    "VLLMClientError": ("0.32", ValueError),
}
"""Names that older versions lack: since when they are there, and what stands in for them."""


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(name)
    for place in NAMES[name]:
        try:
            return getattr(import_module(place), name)
        except (ImportError, AttributeError):
            continue
    if name in SINCE:
        return SINCE[name][1]
    raise ImportError(f"this version of vLLM has no {name} in {', '.join(NAMES[name])}: install vLLM 0.26 to 0.33")
