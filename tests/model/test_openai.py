"""OpenAI's own client on the real engine: tools, formats and choices, streamed and whole."""

import json
from collections.abc import Iterable
from typing import Any

import openai
import pytest

QUESTION: Any = [{"role": "user", "content": "What is the weather in 北京?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["北京", "Paris"]}}, "required": ["city"]},
    },
}


@pytest.fixture
def official(address: str) -> openai.OpenAI:
    return openai.OpenAI(api_key="none", base_url=f"{address}/v1", max_retries=0, timeout=120)


@pytest.fixture
def model(official: openai.OpenAI) -> str:
    """The base model's name, as the service lists it first."""
    return official.models.list().data[0].id


@pytest.mark.parametrize("stream", [True, False])
def test_a_tool_is_called_and_its_result_goes_back(official: openai.OpenAI, model: str, stream: bool) -> None:
    asked: Any = {
        "model": model,
        "messages": QUESTION,
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_tokens": 200,
    }
    got: Any = official.chat.completions.create(**asked, stream=stream)
    call = streamed_call(got) if stream else got.choices[0].message.tool_calls[0].model_dump()
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"])["city"] in ("北京", "Paris")
    messages = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "晴, 21 °C"},
    ]
    answer = official.chat.completions.create(model=model, messages=messages, tools=[WEATHER], max_tokens=20)
    assert answer.usage and answer.usage.prompt_tokens > 100
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


def streamed_call(chunks: Iterable[Any]) -> dict[str, Any]:
    """The first tool call of a stream, which has to end with that reason, once."""
    call: dict[str, Any] = {"type": "function", "function": {"name": "", "arguments": ""}}
    reasons = []
    for chunk in chunks:
        for piece in chunk.choices[0].delta.tool_calls or ():
            if piece.index == 0:
                call |= {"id": piece.id} if piece.id else {}
                call["function"]["name"] += piece.function.name or ""
                call["function"]["arguments"] += piece.function.arguments or ""
        reasons += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    assert len(reasons) == 1
    return call


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_follows_a_schema_in_every_choice(official: openai.OpenAI, model: str, stream: bool) -> None:
    schema = {"type": "object", "properties": {"城市": {"enum": ["北京", "上海"]}}, "required": ["城市"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    got: Any = official.chat.completions.create(
        model=model, messages=QUESTION, response_format=form, n=2, temperature=1, seed=1, max_tokens=100, stream=stream
    )
    texts = ["", ""]
    for chunk in got if stream else [got]:
        for choice in chunk.choices:
            texts[choice.index] += (choice.delta if stream else choice.message).content or ""
    assert all(json.loads(text)["城市"] in ("北京", "上海") for text in texts)


def test_what_a_grammar_excludes_is_json_too(official: openai.OpenAI, model: str) -> None:
    got = official.chat.completions.create(
        model=model,
        messages=QUESTION,
        logprobs=True,
        top_logprobs=5,
        max_tokens=3,
        extra_body={"structured_outputs": {"choice": ["是", "否"]}},
    )
    places = got.choices[0].logprobs
    assert places and places.content
    assert all(-9999 <= one.logprob <= 0 for place in places.content for one in place.top_logprobs)
    assert got.choices[0].message.content in ("是", "否")


def test_tokens_are_counted_as_they_are_sent(official: openai.OpenAI, model: str) -> None:
    answer = official.chat.completions.create(model=model, messages=QUESTION, max_tokens=1)
    root = str(official.base_url).removesuffix("v1/")
    counted: Any = official.post(f"{root}tokenize", body={"model": model, "messages": QUESTION}, cast_to=object)
    assert answer.usage and counted["count"] == answer.usage.prompt_tokens
