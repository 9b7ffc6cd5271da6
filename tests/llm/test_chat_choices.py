"""Several answers of one call of the chat model."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda

from llm.bridge import LoopThread
from llm.chat import ChatVLLM
from llm.protocol import InvalidRequest
from tests.fakes import ScriptedEngine
from tests.llm.conftest import until

CHOICES = ("A long answer.", "One.", "三 四 。")
N = {"n": 3, "temperature": 1.0}
BEST = {"best_of": 3, "temperature": 1.0}
BEAMS = {"use_beam_search": True, "best_of": 3}

Generate = Callable[..., Awaitable[list[ChatGeneration]]]


@pytest.fixture(params=["own loop", "another loop"])
async def engine(request: pytest.FixtureRequest, far: LoopThread) -> ScriptedEngine:
    """On the test's loop, or on one in another thread."""
    made = ScriptedEngine(CHOICES)
    made.loop = asyncio.get_running_loop() if request.param == "own loop" else far.loop
    return made


@pytest.fixture
async def chat(engine: ScriptedEngine) -> ChatVLLM:
    return ChatVLLM(engine=engine)


async def agenerated(chat: ChatVLLM, **kwargs: Any) -> list[Any]:
    return (await chat.agenerate([chat._convert_input("hi").to_messages()], **kwargs)).generations[0]


async def generated(chat: ChatVLLM, **kwargs: Any) -> list[Any]:
    messages = chat._convert_input("hi").to_messages()
    return (await asyncio.to_thread(chat.generate, [messages], **kwargs)).generations[0]


every_way = pytest.mark.parametrize("generate", [agenerated, generated])


def content(generations: list[ChatGeneration]) -> list[Any]:
    return [generation.message.content for generation in generations]


@every_way
async def test_choices_stay_apart(chat: ChatVLLM, engine: ScriptedEngine, generate: Generate) -> None:
    assert content(await generate(chat, **N)) == [*CHOICES]
    assert len(engine.submitted) == 1
    assert engine.unfinished == 0


@every_way
async def test_each_choice_has_its_own_usage_and_ending(
    chat: ChatVLLM, engine: ScriptedEngine, generate: Generate
) -> None:
    messages: list[Any] = [each.message for each in await generate(chat, **N, max_tokens=2)]
    prompt = len(engine.submitted[0].prompt_ids)
    assert [message.usage_metadata["output_tokens"] for message in messages] == [2, 1, 2]
    assert {message.usage_metadata["input_tokens"] for message in messages} == {prompt}
    assert {message.usage_metadata["input_token_details"]["cache_read"] for message in messages} == {3}
    assert [message.response_metadata["finish_reason"] for message in messages] == ["length", "stop", "length"]
    assert {message.response_metadata["model_name"] for message in messages} == {"scripted"}


@every_way
async def test_each_choice_has_its_own_log_probabilities(chat: ChatVLLM, generate: Generate) -> None:
    metadata = [each.message.response_metadata for each in await generate(chat, **N, logprobs=1)]
    assert ["".join(place["token"] for place in each["logprobs"]["content"]) for each in metadata] == [*CHOICES]
    assert [each["cumulative_logprob"] for each in metadata] == [-float(len(text)) for text in CHOICES]


@every_way
@pytest.mark.parametrize("sampling", [BEST, BEAMS], ids=["best_of", "beams"])
@pytest.mark.parametrize("n", [1, 2])
async def test_the_likeliest_answers_are_kept_best_first(
    chat: ChatVLLM, generate: Generate, sampling: dict[str, Any], n: int
) -> None:
    assert content(await generate(chat, **sampling, n=n)) == ["One.", "三 四 。"][:n]


@pytest.mark.parametrize("sampling", [N, BEST, BEAMS], ids=["n", "best_of", "beams"])
async def test_invoke_gives_the_first_choice(chat: ChatVLLM, sampling: dict[str, Any]) -> None:
    first = "A long answer." if sampling is N else "One."
    assert (await chat.ainvoke("hi", **sampling)).content == first
    assert (await asyncio.to_thread(chat.bind(**sampling).invoke, "hi")).content == first
    messages = await chat.abatch(["a", "b"], **sampling)
    assert [message.content for message in messages] == [first, first]


async def test_choices_are_drawn_by_the_models_own_options(engine: ScriptedEngine) -> None:
    assert content(await agenerated(ChatVLLM(engine=engine, **N))) == [*CHOICES]


# Streams


async def astreamed(chat: Any, **kwargs: Any) -> None:
    async for _ in chat.astream("hi", **kwargs):
        pass


async def streamed(chat: Any, **kwargs: Any) -> None:
    await asyncio.to_thread(lambda: list(chat.stream("hi", **kwargs)))


@pytest.mark.parametrize("ask", [astreamed, streamed])
@pytest.mark.parametrize("sampling", [N, BEST, BEAMS], ids=["n", "best_of", "beams"])
async def test_a_stream_of_several_choices_is_refused_with_what_to_call(
    chat: ChatVLLM, engine: ScriptedEngine, ask: Callable[..., Awaitable[None]], sampling: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest, match=r"n, best_of and use_beam_search .* call invoke or generate"):
        await ask(chat, **sampling)
    with pytest.raises(InvalidRequest, match="call invoke or generate"):
        await ask(ChatVLLM(engine=engine, **sampling))
    assert engine.submitted == []


async def test_a_chain_whose_events_are_listened_to_answers_without_streaming(chat: ChatVLLM) -> None:
    async def ask(question: str) -> AIMessage:
        return await chat.ainvoke(question, **N)

    events = [event async for event in RunnableLambda(ask).astream_events("hi", version="v2")]
    ends = [event["data"]["output"] for event in events if event["event"] == "on_chain_end"]
    assert {message.content for message in ends} == {"A long answer."}
    assert not [event for event in events if event["event"] == "on_chat_model_stream"]


class Listener(BaseCallbackHandler):
    """Hears answers; by `on_llm_new_token` it makes no stream."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_llm_end(self, response: Any, **_: Any) -> None:
        self.heard += [generation.text for generation in response.generations[0]]


async def test_a_callback_hears_all_choices_at_the_end(chat: ChatVLLM) -> None:
    listener = Listener()
    await chat.ainvoke("hi", config={"callbacks": [listener]}, **N)
    assert listener.heard == [*CHOICES]


# What is refused, and leaving


@pytest.mark.parametrize("sampling", [{"n": 3}, {"best_of": 3}])
async def test_choices_at_temperature_0_are_refused_with_the_mend(
    chat: ChatVLLM, engine: ScriptedEngine, sampling: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest, match=r"3 at temperature 0 .* set temperature above 0"):
        await chat.ainvoke("hi", **sampling)
    assert engine.submitted == []


@pytest.mark.parametrize("sampling", [N, BEST, BEAMS], ids=["n", "best_of", "beams"])
async def test_cancelling_several_choices_frees_the_engine(
    chat: ChatVLLM, engine: ScriptedEngine, sampling: dict[str, Any]
) -> None:
    engine.gate = asyncio.Event()
    task = asyncio.ensure_future(chat.ainvoke("hi", **sampling))
    await until(lambda: engine.unfinished == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: engine.unfinished == 0)


async def test_braces_reach_every_choice_through_a_chain(engine: ScriptedEngine) -> None:
    braces = '{"a": "{b}"} {0} {} {{x}}'
    engine.replies = [(braces, braces)]
    chain = ChatPromptTemplate([("human", "{question}")]) | ChatVLLM(engine=engine, n=2, temperature=1.0)
    assert (await chain.ainvoke({"question": braces})).content == braces
    assert braces in engine.tokenizer.decode(engine.submitted[0].prompt_ids)
