"""Which of vLLM's parsers read what a model writes: by the options, else by what its chat template writes."""

import difflib
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from llm import vllm_names
from llm.protocol import EngineStartFailed
from llm.reading.calls import CallStart

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from llm.options import EngineOptions

log = logging.getLogger(__name__)

TOOL_MARKS = {
    "<function=": "qwen3_coder",
    "<tool_call>": "hermes",
    "<|python_tag|>": "llama3_json",
    "[TOOL_CALLS]": "mistral",
    "<start_function_call>": "functiongemma",
    "functools": "phi4_mini_json",
    "<|start_header_id|>": "llama3_json",  # 3.2 knows no <|python_tag|>
}
"""What stands in a chat template that renders tool calls → vLLM's parser of that format, the most special first."""

REASONING_MARKS = {"enable_thinking": "qwen3", "<think>": "deepseek_r1", "[THINK]": "mistral"}

CALL_STARTS = {
    "hermes": CallStart.of("<tool_call>"),
    "functiongemma": CallStart.of("<start_function_call>", closing="<end_function_call>"),
    "phi4_mini_json": CallStart.of("functools[", closing="]"),
}
"""How calls begin for those of vLLM's parsers that lose text without knowing it; its newer ones do know."""
JSON_CALLS = {"llama3_json": "<|python_tag|>", "llama4_json": "<|python_tag|>"}
"""Those whose calls are bare JSON, and what may stand before it."""


def call_start(tool_call_parser: str, names: Iterable[str]) -> CallStart | None:
    """How a call of one of these tools begins; None where vLLM's parser looks for it by itself."""
    if tool_call_parser in JSON_CALLS:
        return CallStart.of_json(JSON_CALLS[tool_call_parser], names)
    return CALL_STARTS.get(tool_call_parser)


def parsers_of(options: "EngineOptions", tokenizer: "PreTrainedTokenizerBase") -> tuple[str | None, str | None]:
    """vLLM's names of the model's tool call and reasoning parser: the options', else by what its template writes.

    A template that renders no tools gets them described in words, in the format of `hermes`.
    """
    template = chat_template_of(tokenizer)
    tools = _marked(template, TOOL_MARKS) if "tools" in template else "hermes"
    reasoning = _marked(template, REASONING_MARKS)
    return _chosen(options.tool_call_parser, tools), _chosen(options.reasoning_parser, reasoning)


def checked_parsers(options: "EngineOptions", tokenizer: "PreTrainedTokenizerBase") -> tuple[str | None, str | None]:
    """`parsers_of`, of which vLLM knows the names and the tokenizer has the tokens; imports vLLM.

    A parser that was found by the template alone is left out with a warning. Raises EngineStartFailed for one that the
    options name.
    """
    tools, reasoning = parsers_of(options, tokenizer)
    return (
        _checked("tool_call_parser", tools, options.tool_call_parser, tokenizer),
        _checked("reasoning_parser", reasoning, options.reasoning_parser, tokenizer),
    )


def parser_class(tool_call_parser: str | None, reasoning_parser: str | None) -> Any:
    """vLLM's parser of tool calls, of reasoning or of both. Raises TypeError for a name that vLLM does not know."""
    return vllm_names.ParserManager.get_parser(
        tool_parser_name=tool_call_parser,
        reasoning_parser_name=reasoning_parser,
        enable_auto_tools=tool_call_parser is not None,
    )


def chat_template_of(tokenizer: "PreTrainedTokenizerBase") -> str:
    """The tokenizer's chat template, the one for tools where it has several; empty where it has none."""
    template = tokenizer.chat_template or ""
    if isinstance(template, dict):
        return str(template.get("tool_use") or template.get("default") or "")
    return str(template)


def _chosen(option: str, found: str | None) -> str | None:
    return found if option == "auto" else None if option == "none" else option


def _marked(template: str, marks: dict[str, str]) -> str | None:
    return next((parser for mark, parser in marks.items() if mark in template), None)


def _checked(option: str, name: str | None, given: str, tokenizer: "PreTrainedTokenizerBase") -> str | None:
    if name is None:
        return None
    try:
        _try(option, name, tokenizer)
    except EngineStartFailed as error:
        if given != "auto":
            raise
        log.warning("%s; it is left out, though the chat template writes what it reads", error)
        return None
    return name


def _try(option: str, name: str, tokenizer: "PreTrainedTokenizerBase") -> None:
    is_tools = option == "tool_call_parser"
    known = _known(is_tools)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are auto, none, {', '.join(sorted(known))}"
        raise EngineStartFailed(f"{option}: vLLM has no parser {name!r}; {hint}")
    parser = parser_class(name, None) if is_tools else parser_class(None, name)
    try:
        parser(tokenizer)
    except Exception as error:  # each parser has its own way to say that it misses a token
        raise EngineStartFailed(f"{option}: {name!r} does not fit the model's tokenizer: {error}") from error


def _known(is_tools: bool) -> set[str]:
    """Names that are loaded at their first use, and those of plugins."""
    if is_tools:
        return {*vllm_names.ToolParserManager.lazy_parsers, *vllm_names.ToolParserManager.tool_parsers}
    return {*vllm_names.ReasoningParserManager.lazy_parsers, *vllm_names.ReasoningParserManager.reasoning_parsers}
