"""Answers that are cut, by a stop string or by max_tokens, are never taken for whole ones."""

from typing import Any

import pytest
from langchain_core.exceptions import OutputParserException
from pydantic import BaseModel
from typing_extensions import TypedDict

from llm.chat import ChatVLLM
from llm.engine import Engine
from llm.protocol import InvalidRequest

CITY = {"title": "City", "type": "object", "properties": {"name": {"type": "string", "maxLength": 20}}}
CITY |= {"required": ["name"], "additionalProperties": False}


class Answer(TypedDict):
    """An answer."""

    number: int
    sure: bool


class 城市(BaseModel):
    """一座城市"""

    名称: str


def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@pytest.fixture
def chat(engine: Engine) -> ChatVLLM:
    return ChatVLLM(engine=engine, max_tokens=60)


@pytest.mark.parametrize("method", ["json_schema", "json_mode", "function_calling"])
@pytest.mark.parametrize(("schema", "stop"), [(Answer, "number"), (CITY, "am"), (城市, "名")])
def test_an_object_that_a_stop_string_cuts_is_an_error(chat: ChatVLLM, schema: Any, stop: str, method: str) -> None:
    structured = chat.with_structured_output(schema, method=method)
    with pytest.raises(OutputParserException, match=f"cut by the stop string '{stop}'"):
        structured.invoke("Paris is large.", stop=[stop])
    raw = chat.with_structured_output(schema, method=method, include_raw=True).invoke("Paris is large.", stop=[stop])
    assert raw["parsed"] is None and "stop string" in str(raw["parsing_error"])


def test_with_the_raw_message_the_options_of_the_call_hold_too(chat: ChatVLLM) -> None:
    structured = chat.with_structured_output(CITY, include_raw=True)
    assert structured.invoke("巴黎", max_tokens=3)["raw"].usage_metadata["output_tokens"] == 3
    with pytest.raises(InvalidRequest, match="temprature"):
        structured.invoke("巴黎", temprature=5)


@pytest.mark.parametrize("stop", [",", "arg", "}", "city", '"'])
def test_a_call_that_a_stop_string_cuts_is_none(chat: ChatVLLM, stop: str) -> None:
    answer = chat.bind_tools([weather], tool_choice="weather").invoke("How is the weather in Oslo?", stop=[stop])
    assert not answer.tool_calls
    assert answer.text == ""
    assert (answer.response_metadata["finish_reason"], answer.response_metadata["stop_reason"]) == ("stop", stop)


@pytest.mark.parametrize("max_tokens", range(1, 16))
def test_of_a_call_that_has_to_be_nothing_is_text(chat: ChatVLLM, max_tokens: int) -> None:
    bound = chat.bind_tools([weather], tool_choice="any")
    answer = bound.invoke("How is the weather in Oslo?", max_tokens=max_tokens)
    assert answer.text == ""
    assert not answer.tool_calls
    assert answer.response_metadata["finish_reason"] == "length"


def test_a_grammar_beside_tools_is_refused(chat: ChatVLLM) -> None:
    with pytest.raises(InvalidRequest, match="tools or structured_outputs, not both"):
        chat.bind_tools([weather]).invoke("你好", structured_outputs={"choice": ["甲"]})
    free = chat.bind_tools([weather], tool_choice="none").invoke("你好", structured_outputs={"choice": ["甲"]})
    assert free.content == "甲"
