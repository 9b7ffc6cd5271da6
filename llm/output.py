"""What a model writes in answer to one request: the grammar that holds for it, and how it is read.

A request without tools, on a model that does not reason aloud, is plain text and never imports vLLM.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from llm import vllm_names
from llm.prompt.control import backend_of
from llm.protocol import EngineLike, InvalidRequest
from llm.reading.calls import Calls, CallsFromStart
from llm.reading.parsers import call_start, parser_class
from llm.reading.reader import ParsingReader, Reader, Reasoning, Tokens, ToolCallFragment, Written

if TYPE_CHECKING:
    from llm.options import SamplingOptions

__all__ = ["OutputFormat", "Reader", "ToolCallFragment", "ToolUse", "Written"]


@dataclass(frozen=True)
class ToolUse:
    """The tools of a request: OpenAI's tool dicts; `choice` is none, auto, required or OpenAI's dict of one name."""

    tools: Sequence[dict[str, Any]] = ()
    choice: str | dict[str, Any] = "auto"
    parallel: bool = True


class OutputFormat:
    """How the answer to one request is constrained and read.

    `constraint` is the caller's grammar, a dict of `vllm.StructuredOutputsParams`; of tools vLLM's parser makes one.
    Raises InvalidRequest for both at once, tools that vLLM refuses, or a model whose format of calls is not known.
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
        self._constraint = constraint
        self._tool_parser = engine.tool_call_parser if use.tools and use.choice != "none" else None
        self._reasoning_parser = engine.reasoning_parser
        self._names = [tool["function"]["name"] for tool in use.tools]
        self._special: dict[int, str] = {}
        self._shown, self._hidden = False, True
        if use.tools and use.choice != "none" and self._tool_parser is None:
            raise InvalidRequest(f"how {engine.model} writes tool calls is not known: set engine.tool_call_parser")
        if self._tool_parser and constraint is not None:
            raise InvalidRequest("one grammar holds for an answer: give tools or structured_outputs, not both")
        if self._parses:
            self._prepare(use)

    @property
    def _parses(self) -> bool:
        return bool(self._tool_parser or self._reasoning_parser)

    def _prepare(self, use: ToolUse) -> None:
        request: dict[str, Any] = {"messages": [{"role": "user", "content": ""}], "parallel_tool_calls": use.parallel}
        if self._tool_parser:
            request |= {"tools": list(use.tools), "tool_choice": use.choice}
        if self._constraint is not None:
            request["structured_outputs"] = self._constraint
        try:
            asked = vllm_names.ChatCompletionRequest.model_validate(request)
        except (vllm_names.VLLMClientError, ValueError) as error:
            raise InvalidRequest(f"vLLM refused the tools: {error}") from error
        parser = self._parser(self._tool_parser, self._reasoning_parser, asked.tools)
        self._request = parser.adjust_request(asked)
        self._special = {id: each.content for id, each in self._tokenizer.added_tokens_decoder.items() if each.special}
        tags_are_special = any(tag in self._special.values() for tag in _tags(parser))
        self._shown = tags_are_special or not self._request.skip_special_tokens
        if self._tool_parser and self._request.structured_outputs is not None:
            given = asdict(self._request.structured_outputs)
            self._constraint = {name: value for name, value in given.items() if value and not name.startswith("_")}

    def applied_to(self, sampling: "SamplingOptions") -> "SamplingOptions":
        """The sampling options with the grammar, and with special tokens where the parser has to see them.

        Call it before `reader`, which hides them again.
        """
        changed: dict[str, Any] = {"structured_outputs": self._constraint}
        if self._shown:
            changed |= {"skip_special_tokens": False, "spaces_between_special_tokens": True}
        self._hidden = sampling.skip_special_tokens
        return sampling.model_copy(update=changed)

    def _parser(self, tool_call_parser: str | None, reasoning_parser: str | None, tools: Any = None) -> Any:
        try:
            return parser_class(tool_call_parser, reasoning_parser)(self._tokenizer, tools, **self._options)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            names = " and ".join(filter(None, (tool_call_parser, reasoning_parser)))
            raise InvalidRequest(f"vLLM cannot read the model's answers with {names}: {error}") from error

    def reasoning_ended(self, prompt_ids: list[int]) -> bool | None:
        """Whether a grammar holds from the first token on; None where the model does not reason."""
        if not self._reasoning_parser:
            return None
        return bool(self._parser(None, self._reasoning_parser).is_reasoning_end(self._open_turn(prompt_ids)))

    def reader(self, prompt_ids: list[int]) -> Reader:
        """A reader for one choice of the answer."""
        if not self._parses:
            return Reader()
        hides = self._hidden and not self._shown
        tokens = Tokens(backend_of(self._tokenizer), prompt_ids, hides_special_tokens=hides)
        hidden = self._special if self._hidden else {}
        if self._tool_parser and self._reasoning_parser and self._is_one_parser():
            both = self._parser(self._tool_parser, self._reasoning_parser, self._request.tools)
            return ParsingReader(tokens, None, Calls(both, self._request, self._open_turn(prompt_ids)), hidden=hidden)
        reasoning = self._reasoning(prompt_ids) if self._reasoning_parser else None
        calls = self._calls(self._tool_parser) if self._tool_parser else None
        return ParsingReader(tokens, reasoning, calls, hidden=hidden)

    def _is_one_parser(self) -> bool:
        """Whether vLLM has a parser for both of this model's formats, in place of one after the other."""
        made = parser_class(self._tool_parser, self._reasoning_parser)
        return made.__bases__ != (vllm_names.DelegatingParser,)

    def _reasoning(self, prompt_ids: list[int]) -> Reasoning:
        parser = self._parser(None, self._reasoning_parser)
        added = self._tokenizer.get_added_vocab()
        opening, closing = (added.get(tag) for tag in _tags(parser))
        return Reasoning(parser, self._request, self._open_turn(prompt_ids), opening=opening, closing=closing)

    def _calls(self, name: str) -> Calls:
        parser = self._parser(name, None, self._request.tools)
        # Of some formats vLLM's grammar for a call that has to be makes bare JSON, which its parser knows too.
        as_json = parser.tool_parser.supports_required_and_named and self._request.tool_choice != "auto"
        start = None if as_json else call_start(name, self._names)
        return CallsFromStart(parser, self._request, start) if start else Calls(parser, self._request)

    def _open_turn(self, prompt_ids: list[int]) -> list[int]:
        """The prompt after its last end token: tags of earlier turns say nothing of this one."""
        end = self._tokenizer.eos_token_id
        return prompt_ids[len(prompt_ids) - prompt_ids[::-1].index(end) :] if end in prompt_ids else prompt_ids


def _tags(parser: Any) -> tuple[str | None, str | None]:
    """What opens and closes reasoning in the text; None where the format has no such tags."""
    reasoning = parser.reasoning_parser
    return (reasoning.reasoning_start_str, reasoning.reasoning_end_str) if reasoning else (None, None)
