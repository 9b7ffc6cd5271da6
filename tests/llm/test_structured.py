"""Tools and schemas as LangChain users give them."""

from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from pydantic import BaseModel, Field

from llm.chat import ChatVLLM
from llm.output import OutputFormat, Reader, ToolCallFragment, Written
from llm.protocol import Delta
from llm.structured import constraint_of, openai_tools, tool_choice_of
from tests.fakes import ScriptedEngine


class City(BaseModel):
    """A city."""

    name: str
    people: int = Field(ge=0)


class CityDict(TypedDict):
    """A city."""

    name: str
    people: int


CITY_SCHEMA = {
    "title": "City",
    "description": "A city.",
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer", "minimum": 0}},
    "required": ["name", "people"],
}
WRITTEN = '{"name": "北京", "people": 22}'
SCHEMAS = pytest.mark.parametrize(
    "schema", [City, CityDict, CITY_SCHEMA], ids=["pydantic", "typed dict", "json schema"]
)


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return city


# Tools


def a_function(city: str) -> str:
    """The weather in a city."""
    return city


@pytest.mark.parametrize(
    ("given", "name"),
    [(weather, "weather"), (a_function, "a_function"), (City, "City"), (CityDict, "CityDict"), (CITY_SCHEMA, "City")],
    ids=["tool", "function", "pydantic", "typed dict", "json schema"],
)
def test_every_kind_of_tool_becomes_openais_dict_with_strict_arguments(given: Any, name: str) -> None:
    (made,) = openai_tools([given])
    assert made["type"] == "function"
    assert (made["function"]["name"], made["function"]["strict"]) == (name, True)
    assert made["function"]["parameters"]["type"] == "object"


def test_a_tools_own_strictness_stays() -> None:
    loose = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": False}}
    assert openai_tools([loose]) == [loose]
    assert openai_tools([weather], strict=False)[0]["function"]["strict"] is False


NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize(
    ("choice", "asked"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        (False, "none"),
        ("any", "required"),
        ("required", "required"),
        (True, "required"),
        ("weather", NAMED),
        (NAMED, NAMED),
    ],
    ids=str,
)
def test_every_way_to_choose_a_tool_becomes_openais(choice: Any, asked: Any) -> None:
    assert tool_choice_of(choice, openai_tools([weather])) == asked


@pytest.mark.parametrize("choice", ["wetter", {"type": "function", "function": {"name": "wetter"}}], ids=str)
def test_a_tool_that_is_not_bound_is_refused_with_those_that_are(choice: Any) -> None:
    with pytest.raises(ValueError, match=r"'wetter'; bound are \['weather'\]"):
        ChatVLLM(engine=ScriptedEngine()).bind_tools([weather], tool_choice=choice)


def test_tools_are_bound_with_their_choice() -> None:
    chat = ChatVLLM(engine=ScriptedEngine())
    assert chat.bind_tools([weather], tool_choice="any", parallel_tool_calls=False, temperature=0.5).kwargs == {
        "tools": openai_tools([weather]),
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0.5,
    }
    assert "parallel_tool_calls" not in chat.bind_tools([weather]).kwargs
    assert chat.bind_tools([weather], strict=False).kwargs["tools"][0]["function"]["strict"] is False


# Constraints


@pytest.mark.parametrize(
    ("given", "constraint"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"json_object": True}),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": CITY_SCHEMA}}, {"json": CITY_SCHEMA}),
    ],
    ids=["text", "json_object", "json_schema"],
)
async def test_a_response_format_reaches_the_engine_as_a_constraint(given: Any, constraint: Any) -> None:
    assert constraint_of(given) == constraint
    engine = ScriptedEngine(WRITTEN)
    await ChatVLLM(engine=engine).ainvoke("hi", response_format=given)
    assert engine.submitted[0].sampling.structured_outputs == constraint


@SCHEMAS
def test_a_class_is_a_response_format_too(schema: Any) -> None:
    constraint = constraint_of(
        {"type": "json_schema", "json_schema": {"schema": schema}} if schema is CITY_SCHEMA else schema
    )
    assert constraint is not None
    assert constraint["json"]["properties"].keys() == {"name", "people"}


def test_a_response_format_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="'xml'; known are text, json_object and json_schema"):
        constraint_of({"type": "xml"})


# Structured output


def scripted(reply: str, **options: Any) -> tuple[ScriptedEngine, ChatVLLM]:
    engine = ScriptedEngine(reply)
    return engine, ChatVLLM(engine=engine, **options)


def as_dict(answer: Any) -> dict[str, Any]:
    return answer.model_dump() if isinstance(answer, City) else answer


@SCHEMAS
@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
async def test_an_answer_of_a_schema_is_constrained_to_it_and_parsed(schema: Any, method: str) -> None:
    engine, chat = scripted(WRITTEN)
    answer = await chat.with_structured_output(schema, method=method).ainvoke("hi")
    assert isinstance(answer, City) is (schema is City)
    assert as_dict(answer) == {"name": "北京", "people": 22}
    constraint = engine.submitted[0].sampling.structured_outputs
    assert constraint and constraint["json"]["properties"].keys() == {"name", "people"}


async def test_json_mode_without_a_schema_takes_any_object() -> None:
    engine, chat = scripted('{"anything": [1]}')
    assert await chat.with_structured_output(method="json_mode").ainvoke("hi") == {"anything": [1]}
    assert engine.submitted[0].sampling.structured_outputs == {"json_object": True}


@SCHEMAS
@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
async def test_the_raw_message_stands_beside_what_was_parsed(schema: Any, method: str) -> None:
    _, chat = scripted(WRITTEN)
    answer = await chat.with_structured_output(schema, method=method, include_raw=True).ainvoke("hi")
    assert (answer["raw"].content, answer["parsing_error"]) == (WRITTEN, None)
    assert as_dict(answer["parsed"]) == {"name": "北京", "people": 22}


async def test_what_is_sampled_otherwise_is_bound_too() -> None:
    engine, chat = scripted(WRITTEN)
    await chat.with_structured_output(City, repetition_penalty=1.15).ainvoke("hi")
    assert engine.submitted[0].sampling.repetition_penalty == 1.15


@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
async def test_objects_grow_while_they_are_streamed(method: str) -> None:
    _, chat = scripted(WRITTEN)
    parts = [part async for part in chat.with_structured_output(CITY_SCHEMA, method=method).astream("hi")]
    assert parts[0].keys() <= {"name"}
    assert parts[-1] == {"name": "北京", "people": 22}


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_a_method_that_needs_a_schema_says_so(method: str) -> None:
    with pytest.raises(ValueError, match=f"'{method}' needs a schema"):
        ChatVLLM(engine=ScriptedEngine()).with_structured_output(method=method)


def test_a_method_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="'xml' is not known: json_schema, function_calling, json_mode"):
        ChatVLLM(engine=ScriptedEngine()).with_structured_output(City, method="xml")


# What is no whole object


@SCHEMAS
@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
async def test_a_cut_answer_is_an_error_and_not_half_an_object(schema: Any, method: str) -> None:
    """LangChain's parsers make `{"name": "北京"}` of it, which is of the dict's type and may be of the class."""
    _, chat = scripted(WRITTEN, max_tokens=2)
    with pytest.raises(OutputParserException, match="cut by max_tokens"):
        await chat.with_structured_output(schema, method=method).ainvoke("hi")
    answer = await chat.with_structured_output(schema, method=method, include_raw=True).ainvoke("hi")
    assert answer["parsed"] is None
    assert isinstance(answer["parsing_error"], OutputParserException)
    assert answer["raw"].response_metadata["finish_reason"] == "length"


@SCHEMAS
async def test_a_stream_of_objects_that_is_cut_ends_with_the_error(schema: Any) -> None:
    _, chat = scripted('{"name": "北京", "people": 22, "more": []}', max_tokens=4)
    parts = []
    with pytest.raises(OutputParserException, match="cut by max_tokens"):
        async for part in chat.with_structured_output(schema).astream("hi"):
            parts.append(as_dict(part))
    assert all(part.items() <= {"name": "北京"}.items() for part in parts)


async def test_an_object_that_is_whole_at_the_cut_is_taken() -> None:
    _, chat = scripted(f"{WRITTEN} .", max_tokens=4)
    answer = await chat.with_structured_output(City, include_raw=True).ainvoke("hi")
    assert answer["raw"].response_metadata["finish_reason"] == "length"
    assert answer["parsed"] == City(name="北京", people=22)


@pytest.mark.parametrize("reply", ["no JSON", '{"name": "北京", "people": -1}'], ids=["text", "value"])
async def test_what_is_not_of_the_schema_is_an_error(reply: str) -> None:
    _, chat = scripted(reply)
    with pytest.raises(OutputParserException):
        await chat.with_structured_output(City).ainvoke("hi")


# By a call of a tool, with a reader in place of vLLM's parser: see tests/model for that one


class OneCall(OutputFormat):
    """Reads the whole text as the arguments of one call."""

    def __init__(self, engine: Any, use: Any, *_: Any, **__: Any) -> None:
        self.use = use

    def applied_to(self, sampling: Any) -> Any:
        return sampling

    def reasoning_ended(self, prompt_ids: list[int]) -> None:
        return None

    def reader(self, prompt_ids: list[int]) -> Reader:
        return Calling()


class Calling(Reader):
    called = False

    def read(self, delta: Delta) -> Written:
        self.finish_reason = "tool_calls" if delta.finish_reason == "stop" else delta.finish_reason
        name, self.called = None if self.called else "City", True
        return Written(tool_calls=[ToolCallFragment(0, name and "call-a", name, delta.text)])


@pytest.fixture
def calling(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ChatVLLM]:
    monkeypatch.setattr("llm.chat.OutputFormat", OneCall)
    return lambda reply, **options: scripted(reply, **options)[1]


@pytest.mark.parametrize("schema", [City, CITY_SCHEMA], ids=["pydantic", "json schema"])
async def test_the_arguments_of_a_call_are_the_answer(calling: Callable[..., ChatVLLM], schema: Any) -> None:
    model = calling(WRITTEN).with_structured_output(schema, method="function_calling")
    assert as_dict(await model.ainvoke("hi")) == {"name": "北京", "people": 22}


@pytest.mark.parametrize("schema", [City, CITY_SCHEMA], ids=["pydantic", "json schema"])
async def test_a_cut_call_is_an_error_and_no_call(calling: Callable[..., ChatVLLM], schema: Any) -> None:
    chat = calling(WRITTEN, max_tokens=2)
    with pytest.raises(OutputParserException, match="cut by max_tokens"):
        await chat.with_structured_output(schema, method="function_calling").ainvoke("hi")
    answer = await chat.with_structured_output(schema, method="function_calling", include_raw=True).ainvoke("hi")
    assert answer["parsed"] is None and answer["parsing_error"] is not None
    message = answer["raw"]
    assert isinstance(message, AIMessage)
    assert message.tool_calls == []
    assert [call["args"] for call in message.invalid_tool_calls] == ['{"name": "北京", ']
