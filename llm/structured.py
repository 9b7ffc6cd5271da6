"""Tools and schemas as LangChain users give them → what a request carries."""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import JsonOutputKeyToolsParser, JsonOutputParser, PydanticOutputParser
from langchain_core.output_parsers.openai_tools import PydanticToolsParser
from langchain_core.output_parsers.transform import BaseCumulativeTransformOutputParser
from langchain_core.outputs import ChatGeneration, Generation
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

from llm.reading.calls import is_json

Tool = dict[str, Any] | type | Callable | BaseTool
METHODS = ("json_schema", "function_calling", "json_mode")


def openai_tools(tools: Sequence[Tool], *, strict: bool = True) -> list[dict[str, Any]]:
    """OpenAI's tool dicts; with `strict` the grammar holds for the arguments too, not for the call's frame only."""
    converted = [convert_to_openai_tool(tool) for tool in tools]
    return [{**tool, "function": {"strict": strict, **tool["function"]}} for tool in converted]


def tool_choice_of(choice: str | dict[str, Any] | bool | None, tools: Sequence[dict[str, Any]]) -> Any:
    """none, auto, required or OpenAI's dict of one tool's name. Raises ValueError for a tool that is not bound."""
    if choice is None or choice in ("auto", "none"):
        return choice or "auto"
    if choice is False:
        return "none"
    if choice is True or choice in ("any", "required"):
        return "required"
    name = choice["function"]["name"] if isinstance(choice, dict) else choice
    names = [tool["function"]["name"] for tool in tools]
    if name not in names:
        raise ValueError(f"tool_choice names {name!r}; bound are {names}, and auto, any, required and none are known")
    return {"type": "function", "function": {"name": name}}


def constraint_of(response_format: Any) -> dict[str, Any] | None:
    """OpenAI's `response_format` (or a class with a schema) as a dict of `vllm.StructuredOutputsParams`."""
    if not isinstance(response_format, dict):
        return {"json": convert_to_json_schema(response_format)}
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    if kind == "json_schema":
        return {"json": response_format["json_schema"]["schema"]}
    raise ValueError(f"response_format has the type {kind!r}; known are text, json_object and json_schema")


def structured_output(
    model: BaseChatModel,
    schema: dict[str, Any] | type | None,
    *,
    method: str,
    include_raw: bool,
    strict: bool | None,
    **kwargs: Any,
) -> Runnable[Any, Any]:
    """The model bound to a schema, with a parser after it; with `include_raw` a dict of raw, parsed, parsing_error."""
    if method not in METHODS:
        raise ValueError(f"method {method!r} is not known: {', '.join(METHODS)}")
    if schema is None and method != "json_mode":
        raise ValueError(f"method {method!r} needs a schema: a Pydantic class, a TypedDict or a JSON schema")
    as_json = None if schema is None else convert_to_json_schema(schema)
    noted = {"ls_structured_output_format": {"kwargs": {"method": method, "strict": strict}, "schema": as_json}}
    if method == "function_calling":
        assert schema is not None
        bound, parser = _by_tool(model, schema, strict=strict is not False, **noted, **kwargs)
    else:
        constraint = {"json_object": True} if as_json is None else {"json": as_json}
        bound, parser = model.bind(structured_outputs=constraint, **noted, **kwargs), _json_parser(schema)
    whole = _Whole(parser=parser)
    return _with_raw(bound, whole) if include_raw else bound | whole


def _by_tool(model: BaseChatModel, schema: Any, **kwargs: Any) -> tuple[Runnable, Runnable]:
    name = convert_to_openai_tool(schema)["function"]["name"]
    bound = model.bind_tools([schema], tool_choice=name, **kwargs)
    if is_basemodel_subclass(schema):
        return bound, PydanticToolsParser(tools=[schema], first_tool_only=True)
    return bound, JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)


def _json_parser(schema: Any) -> Runnable[AIMessage, Any]:
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        return PydanticOutputParser(pydantic_object=schema)
    return JsonOutputParser()


class _Whole(BaseCumulativeTransformOutputParser[Any]):
    """Refuses an answer that was cut, of which LangChain's parsers make an object with some of its values."""

    parser: Any

    @property
    def OutputType(self) -> type[Any]:
        return self.parser.OutputType

    def parse_result(self, result: list[Generation], *, partial: bool = False) -> Any:
        _refuse_cut(result[0])
        return self.parser.parse_result(result, partial=partial)

    def parse(self, text: str) -> Any:
        return self.parser.parse(text)


def _refuse_cut(generation: Generation) -> None:
    assert isinstance(generation, ChatGeneration)
    about = generation.message.response_metadata
    stop = about.get("stop_reason")
    if about.get("finish_reason") == "length":
        cut, mend = "max_tokens", "raise max_tokens"
    elif isinstance(stop, str):
        cut, mend = f"the stop string {stop!r}", "leave it out"
    else:
        return
    if not _is_whole(generation.message, generation.text):
        raise OutputParserException(f"the answer was cut by {cut} and is no whole object: {mend}", generation.text)


def _is_whole(message: BaseMessage, text: str) -> bool:
    if pieces := getattr(message, "tool_call_chunks", None):  # of which LangChain makes calls that were never written
        return all(is_json(piece["args"] or "") for piece in pieces)
    return bool(getattr(message, "tool_calls", None)) or is_json(text)


def _with_raw(bound: Runnable, parser: Runnable) -> Runnable:
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    # The model first, not inside the map: only the first of a sequence is given the options of the call.
    raw = bound | RunnableMap(raw=RunnablePassthrough())
    return raw | parsed.with_fallbacks([failed], exception_key="parsing_error")
