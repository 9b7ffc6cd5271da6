"""Several answers of one call of the chat model, on the real engine; and read by vLLM's own parsers."""

import asyncio
import json
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from llm.chat import ChatVLLM
from llm.engine import Engine
from llm.protocol import InvalidRequest
from tests.fakes import ScriptedEngine

QUESTION = "Say a number."
DRAWN = {"temperature": 1.5, "seed": 1, "max_tokens": 6}


@pytest.fixture
def chat(engine: Engine) -> ChatVLLM:
    return ChatVLLM(engine=engine)


def answers(chat: ChatVLLM, **options: Any) -> list[Any]:
    result = chat.generate([[HumanMessage(QUESTION)]], **options)
    return [generation.message for generation in result.generations[0]]  # type: ignore[attr-defined]


def likelihoods(messages: list[Any]) -> list[float]:
    return [message.response_metadata["cumulative_logprob"] for message in messages]


def test_choices_stay_apart_each_with_its_own_usage_ending_and_log_probabilities(chat: ChatVLLM) -> None:
    messages = answers(chat, n=3, logprobs=1, **DRAWN)
    assert len({message.content for message in messages}) == 3
    prompt = chat.get_num_tokens_from_messages([HumanMessage(QUESTION)])
    for message in messages:
        told = message.response_metadata
        places = told["logprobs"]["content"]
        assert message.usage_metadata["input_tokens"] == prompt
        assert message.usage_metadata["output_tokens"] == len(places)
        assert told["finish_reason"] == ("length" if len(places) == 6 else "stop")
        assert "".join(place["token"] for place in places).removesuffix("<|im_end|>") == message.content
        assert sum(place["logprob"] for place in places) == pytest.approx(told["cumulative_logprob"], abs=1e-4)


def test_the_same_seed_draws_the_same_choices_one_loop_or_another(chat: ChatVLLM) -> None:
    messages = [[HumanMessage(QUESTION)]]
    elsewhere = asyncio.run(chat.agenerate(messages, n=3, **DRAWN)).generations[0]
    assert [generation.text for generation in elsewhere] == [message.content for message in answers(chat, n=3, **DRAWN)]


def test_best_of_keeps_the_likeliest_best_first(chat: ChatVLLM) -> None:
    every = sorted(likelihoods(answers(chat, n=4, logprobs=0, **DRAWN)), reverse=True)
    best = answers(chat, best_of=4, n=2, **DRAWN)
    assert likelihoods(best) == pytest.approx(every[:2], abs=1e-3)
    assert chat.invoke(QUESTION, best_of=4, **DRAWN).content == best[0].content


def test_the_best_beam_is_at_least_as_likely_as_the_greedy_answer(chat: ChatVLLM) -> None:
    alike = {"max_tokens": 6, "ignore_eos": True}  # beams are ordered by the mean of their tokens
    beams = answers(chat, use_beam_search=True, best_of=4, n=3, **alike)
    (greedy,) = answers(chat, logprobs=0, **alike)
    first, second, third = likelihoods(beams)
    assert first >= second >= third
    assert first >= likelihoods([greedy])[0] - 1e-3
    assert len({beam.content for beam in beams}) == 3


def test_events_of_several_choices_come_without_a_stream(chat: ChatVLLM) -> None:
    async def listen() -> list[Any]:
        chain = RunnableLambda(lambda question: chat.invoke(question, n=2, **DRAWN))
        return [event async for event in chain.astream_events(QUESTION, version="v2")]

    events = asyncio.run(listen())
    assert [event["data"]["output"].content for event in events if event["event"] == "on_chain_end"][-1]
    assert not [event for event in events if event["event"] == "on_chat_model_stream"]


def test_what_cannot_be_is_refused_in_plain_words(chat: ChatVLLM) -> None:
    with pytest.raises(InvalidRequest, match="n 2 at temperature 0 gives one answer 2 times: set temperature above 0"):
        chat.invoke(QUESTION, n=2)
    with pytest.raises(InvalidRequest, match="give whole answers: call invoke or generate"):
        next(chat.stream(QUESTION, n=2, temperature=1.0))


# vLLM's parsers, on scripted text


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return city


def call(city: str) -> str:
    written = json.dumps({"name": "weather", "arguments": {"city": city}}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


async def test_each_choice_is_read_by_a_parser_of_its_own() -> None:
    scripted = ScriptedEngine((call("北京"), "No tool is needed.", call("Lyon")))
    scripted.tool_call_parser = "hermes"
    chat = ChatVLLM(engine=scripted, n=3, temperature=1.0)
    result = await chat.agenerate([[HumanMessage("hi")]], **chat.bind_tools([weather]).kwargs)
    messages: list[Any] = [generation.message for generation in result.generations[0]]
    calls = [[each["args"] for each in message.tool_calls] for message in messages]
    assert calls == [[{"city": "北京"}], [], [{"city": "Lyon"}]]
    assert [message.content.strip() for message in messages] == ["", "No tool is needed.", ""]
    assert len({each["id"] for message in messages for each in message.tool_calls}) == 2
    reasons = [message.response_metadata["finish_reason"] for message in messages]
    assert reasons == ["tool_calls", "stop", "tool_calls"]
