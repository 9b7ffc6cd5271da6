"""What a model writes, read by vLLM's own parsers: token deltas → text, reasoning and tool calls.

A request without tools, on a model that does not reason aloud, is plain text and never imports vLLM.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from llm import vllm_names
from llm.protocol import Delta, EngineLike, InvalidRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from llm.options import EngineOptions, SamplingOptions

TOOL_MARKS = {
    "<function=": "qwen3_coder",
    "<tool_call>": "hermes",
    "<|python_tag|>": "llama3_json",
    "[TOOL_CALLS]": "mistral",
    "<start_function_call>": "functiongemma",
    "functools": "phi4_mini_json",
}
"""What stands in a chat template that renders tool calls → vLLM's parser of that format, the most special first."""

REASONING_MARKS = {"enable_thinking": "qwen3", "<think>": "deepseek_r1", "[THINK]": "mistral"}


@dataclass(frozen=True, slots=True)
class ToolCallFragment:
    """A part of a tool call as it is written: id and name with the first, then pieces of the arguments' JSON."""

    index: int
    id: str | None
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class Written:
    """What one delta added."""

    text: str = ""
    reasoning: str = ""
    tool_calls: Sequence[ToolCallFragment] = ()


@dataclass(frozen=True)
class ToolUse:
    """The tools of a request: OpenAI's tool dicts; `choice` is none, auto, required or OpenAI's dict of one name."""

    tools: Sequence[dict[str, Any]] = ()
    choice: str | dict[str, Any] = "auto"
    parallel: bool = True


class OutputFormat:
    """How the answer to one request is constrained and read.

    `constraint` is the caller's grammar, a dict of `vllm.StructuredOutputsParams`; vLLM's parser makes one of the tools
    and of it. Raises InvalidRequest for tools that vLLM refuses, or a model whose format of tool calls is not known.
    """

    def __init__(
        self,
        engine: EngineLike,
        use: ToolUse,
        template_options: dict[str, Any] | None = None,
        *,
        constraint: dict[str, Any] | None = None,
    ) -> None:
        self._tokenizer = engine.tokenizer
        self._options = {"chat_template_kwargs": template_options or {}}
        self._tools = bool(use.tools) and use.choice != "none"
        self._parser_class: Any = None
        self._constraint = constraint
        self._hides_special_tokens = True
        if self._tools and engine.tool_call_parser is None:
            raise InvalidRequest(f"how {engine.model} writes tool calls is not known: set engine.tool_call_parser")
        if self._tools or engine.reasoning_parser:
            self._set_parser(engine, use)

    def _set_parser(self, engine: EngineLike, use: ToolUse) -> None:
        self._parser_class = _parser_class(engine.tool_call_parser if self._tools else None, engine.reasoning_parser)
        request: dict[str, Any] = {"messages": [{"role": "user", "content": ""}], "parallel_tool_calls": use.parallel}
        if self._tools:
            request |= {"tools": list(use.tools), "tool_choice": use.choice}
        if self._constraint is not None:
            request["structured_outputs"] = self._constraint
        try:
            asked = vllm_names.ChatCompletionRequest.model_validate(request)
        except (vllm_names.VLLMClientError, ValueError) as error:
            raise InvalidRequest(f"vLLM refused the tools: {error}") from error
        self._request = self._new_parser(asked.tools).adjust_request(asked)
        self._hides_special_tokens = self._request.skip_special_tokens
        if self._tools and self._request.structured_outputs is not None:
            given = asdict(self._request.structured_outputs)
            self._constraint = {name: value for name, value in given.items() if value and not name.startswith("_")}

    def applied_to(self, sampling: "SamplingOptions") -> "SamplingOptions":
        """The sampling options with the grammar, and with special tokens where the parser has to see them."""
        changed: dict[str, Any] = {"structured_outputs": self._constraint}
        if not self._hides_special_tokens:
            changed["skip_special_tokens"] = False
        return sampling.model_copy(update=changed)

    def _new_parser(self, tools: Any) -> Any:
        return self._parser_class(self._tokenizer, tools, **self._options)

    def reasoning_ended(self, prompt_ids: list[int]) -> bool | None:
        """Whether a grammar holds from the first token on; None where the model does not reason."""
        if self._parser_class is None or self._parser_class.reasoning_parser_cls is None:
            return None
        return bool(self._new_parser(None).is_reasoning_end(prompt_ids))

    def reader(self, prompt_ids: list[int]) -> "Reader":
        """A reader for one choice of the answer."""
        if self._parser_class is None:
            return Reader()
        return _ParsingReader(self._new_parser(self._request.tools), self._request, prompt_ids)


class Reader:
    """Reads the deltas of one choice in order: all of it is text."""

    finish_reason: str | None = None

    def read(self, delta: Delta) -> Written:
        """What the delta added. After the last one `finish_reason` says how the choice ended."""
        self.finish_reason = delta.finish_reason
        return Written(delta.text)


@dataclass
class _ParsingReader(Reader):
    parser: Any
    request: Any
    prompt_ids: list[int]
    called: bool = field(default=False)

    def read(self, delta: Delta) -> Written:
        finished = delta.finish_reason is not None
        found = self.parser.parse_delta(
            delta.text, list(delta.token_ids), self.request, prompt_token_ids=self.prompt_ids, finished=finished
        )
        calls = [_fragment(call) for call in found.tool_calls] if found else []
        self.called = self.called or bool(calls)
        self.finish_reason = "tool_calls" if self.called and delta.finish_reason == "stop" else delta.finish_reason
        if found is None:
            return Written()
        return Written(found.content or "", getattr(found, "reasoning", None) or "", calls)


def _fragment(call: Any) -> ToolCallFragment:
    function = call.function
    name, arguments = (function.name, function.arguments) if function else (None, None)
    return ToolCallFragment(call.index, call.id, name, arguments or "")


def _parser_class(tool_call_parser: str | None, reasoning_parser: str | None) -> Any:
    try:
        return vllm_names.ParserManager.get_parser(
            tool_parser_name=tool_call_parser,
            reasoning_parser_name=reasoning_parser,
            enable_auto_tools=tool_call_parser is not None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"vLLM has no parser {tool_call_parser or reasoning_parser!r}: {error}") from error


def parsers_of(options: "EngineOptions", tokenizer: "PreTrainedTokenizerBase") -> tuple[str | None, str | None]:
    """vLLM's names of the model's tool call and reasoning parser: the options', else by what its template writes.

    A template that renders no tools gets them described in words, in the format of `hermes`.
    """
    template = chat_template_of(tokenizer)
    tools = _marked(template, TOOL_MARKS) if "tools" in template else "hermes"
    reasoning = _marked(template, REASONING_MARKS)
    return _chosen(options.tool_call_parser, tools), _chosen(options.reasoning_parser, reasoning)


def _chosen(option: str, found: str | None) -> str | None:
    return found if option == "auto" else None if option == "none" else option


def _marked(template: str, marks: dict[str, str]) -> str | None:
    return next((parser for mark, parser in marks.items() if mark in template), None)


def chat_template_of(tokenizer: "PreTrainedTokenizerBase") -> str:
    """The tokenizer's chat template, the one for tools where it has several; empty where it has none."""
    template = tokenizer.chat_template or ""
    if isinstance(template, dict):
        return str(template.get("tool_use") or template.get("default") or "")
    return str(template)
