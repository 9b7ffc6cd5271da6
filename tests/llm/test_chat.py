import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import reduce
from operator import add
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from pydantic import ValidationError

from llm.bridge import LoopThread, SyncCallOnLoop
from llm.chat import ChatVLLM
from llm.options import SamplingOptions
from llm.prompting import PromptTooLong, UnsupportedContent
from llm.protocol import NORMAL, URGENT, EngineBusy, EngineUnavailable, InvalidRequest
from tests.fakes import ScriptedEngine
from tests.llm.conftest import until

REPLY = "The answer is 42. 答案是四十二。"
MESSAGES = [SystemMessage("Be brief."), HumanMessage("你好 {x}?")]

Ask = Callable[..., Awaitable[AIMessage]]


@pytest.fixture(params=["own loop", "another loop"])
async def engine(request: pytest.FixtureRequest, far: LoopThread) -> ScriptedEngine:
    """On the test's loop, or on one in another thread."""
    made = ScriptedEngine(REPLY)
    made.loop = asyncio.get_running_loop() if request.param == "own loop" else far.loop
    return made


@pytest.fixture
def distant(far: LoopThread) -> ScriptedEngine:
    """On a loop in another thread, for callers without one."""
    made = ScriptedEngine(REPLY)
    made.loop = far.loop
    return made


async def astreamed(chat: Any, *args: Any, **kwargs: Any) -> AIMessage:
    return reduce(add, [chunk async for chunk in chat.astream(*args, **kwargs)])


async def ainvoked(chat: Any, *args: Any, **kwargs: Any) -> AIMessage:
    return await chat.ainvoke(*args, **kwargs)


async def streamed(chat: Any, *args: Any, **kwargs: Any) -> AIMessage:
    return await asyncio.to_thread(lambda: reduce(add, chat.stream(*args, **kwargs)))


async def invoked(chat: Any, *args: Any, **kwargs: Any) -> AIMessage:
    return await asyncio.to_thread(chat.invoke, *args, **kwargs)


every_way = pytest.mark.parametrize("ask", [astreamed, ainvoked, streamed, invoked])


@every_way
async def test_every_way_of_asking_gives_the_same_answer(engine: ScriptedEngine, ask: Ask) -> None:
    answer = await ask(ChatVLLM(engine=engine), MESSAGES)
    assert answer.content == REPLY
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.response_metadata["model_name"] == "scripted"
    assert engine.unfinished == 0


@every_way
async def test_usage_is_exact(engine: ScriptedEngine, ask: Ask) -> None:
    answer = await ask(ChatVLLM(engine=engine), MESSAGES)
    prompt = len(engine.submitted[0].prompt_ids)
    assert answer.usage_metadata == {
        "input_tokens": prompt,
        "output_tokens": 5,
        "total_tokens": prompt + 5,
        "input_token_details": {"cache_read": 3},
    }


@every_way
async def test_a_cut_answer_says_so(engine: ScriptedEngine, ask: Ask) -> None:
    answer = await ask(ChatVLLM(engine=engine, max_tokens=2), MESSAGES)
    assert answer.content == "The answer "
    assert answer.response_metadata["finish_reason"] == "length"


async def test_input_and_cached_tokens_stand_on_one_chunk_only(engine: ScriptedEngine) -> None:
    usages = [chunk.usage_metadata async for chunk in ChatVLLM(engine=engine).astream(MESSAGES)]
    prompt = len(engine.submitted[0].prompt_ids)
    assert [usage["input_tokens"] for usage in usages if usage] == [prompt, 0, 0, 0, 0, 0]
    assert [usage.get("input_token_details", {}).get("cache_read", 0) for usage in usages if usage] == [
        0,
        3,
        0,
        0,
        0,
        0,
    ]
    assert [usage["output_tokens"] for usage in usages if usage] == [0, 1, 1, 1, 1, 1]


async def test_only_the_last_chunk_ends(engine: ScriptedEngine) -> None:
    chunks = [chunk async for chunk in ChatVLLM(engine=engine).astream(MESSAGES)]
    assert [chunk.chunk_position for chunk in chunks] == [None] * 5 + ["last"]
    assert ["finish_reason" in chunk.response_metadata for chunk in chunks] == [False] * 5 + [True]


async def test_the_first_chunk_is_empty_and_says_that_the_engine_admitted_the_request(engine: ScriptedEngine) -> None:
    engine.gate = asyncio.Event()
    async with aclosing(ChatVLLM(engine=engine).astream(MESSAGES)) as chunks:
        first = await anext(chunks)
        assert first.content == ""
        assert engine.unfinished == 1


async def test_a_request_that_is_not_admitted_gives_no_chunk(engine: ScriptedEngine) -> None:
    engine.refusal = EngineBusy("64 requests wait already")
    async with aclosing(ChatVLLM(engine=engine).astream(MESSAGES)) as chunks:
        with pytest.raises(EngineBusy) as caught:
            await anext(chunks)
    assert caught.value is engine.refusal


async def test_the_count_of_messages_is_the_number_of_ids_sent(engine: ScriptedEngine) -> None:
    chat = ChatVLLM(engine=engine)
    counted = chat.get_num_tokens_from_messages(MESSAGES)
    await chat.ainvoke(MESSAGES)
    assert counted == len(engine.submitted[0].prompt_ids)


async def test_a_plain_texts_ids_hold_no_control_token(engine: ScriptedEngine) -> None:
    chat = ChatVLLM(engine=engine)
    assert chat.get_num_tokens("<|im_end|>") == len("<|im_end|>")


@every_way
async def test_braces_reach_the_engine_unchanged_through_a_chain(engine: ScriptedEngine, ask: Ask) -> None:
    braces = '配置 {"key": "{value}"} 与 {0} {} {{x}}'
    chain = ChatPromptTemplate([("system", "Read {document}"), ("human", "{question}")]) | ChatVLLM(engine=engine)
    await ask(chain, {"document": braces, "question": braces})
    prompt = engine.tokenizer.decode(engine.submitted[0].prompt_ids)
    assert prompt.startswith(f"<|im_start|>system\nRead {braces}<|im_end|>\n<|im_start|>user\n{braces}<|im_end|>")


# What does not fit


@every_way
async def test_a_prompt_that_fills_the_window_is_refused_before_the_engine_sees_it(
    engine: ScriptedEngine, ask: Ask
) -> None:
    chat = ChatVLLM(engine=engine)
    engine.max_model_len = size = chat.get_num_tokens_from_messages(MESSAGES)
    with pytest.raises(PromptTooLong, match=f"{size} tokens.* {size} with the answer") as caught:
        await ask(chat, MESSAGES)
    assert (caught.value.prompt_tokens, caught.value.max_model_len) == (size, size)
    assert engine.submitted == []


@every_way
async def test_a_prompt_that_leaves_one_token_is_answered(engine: ScriptedEngine, ask: Ask) -> None:
    chat = ChatVLLM(engine=engine)
    engine.max_model_len = chat.get_num_tokens_from_messages(MESSAGES) + 1
    assert (await ask(chat, MESSAGES)).content == REPLY


async def test_a_far_too_long_prompt_is_refused_and_the_next_one_answered(distant: ScriptedEngine) -> None:
    chat = ChatVLLM(engine=distant)
    with pytest.raises(PromptTooLong) as caught:
        await chat.ainvoke("汉" * 300_000)
    assert caught.value.prompt_tokens > distant.max_model_len
    assert (await chat.ainvoke("hi")).content == REPLY


async def test_as_many_tokens_as_the_window_holds_may_be_asked_for(engine: ScriptedEngine) -> None:
    assert (await ChatVLLM(engine=engine).ainvoke("hi", max_tokens=engine.max_model_len)).content == REPLY


async def test_an_image_is_refused_before_the_engine_sees_it(engine: ScriptedEngine) -> None:
    image = HumanMessage([{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}])
    with pytest.raises(UnsupportedContent):
        await ChatVLLM(engine=engine).ainvoke([image])
    assert engine.submitted == []


# Sampling


async def test_sampling_is_given_to_the_constructor_bound_or_given_to_the_call(engine: ScriptedEngine) -> None:
    chat = ChatVLLM(engine=engine, temperature=0.1, max_tokens=11, seed=7)
    await chat.ainvoke("hi")
    await chat.bind(max_tokens=12, top_p=0.5).ainvoke("hi")
    await chat.bind(max_tokens=12, top_p=0.5).ainvoke("hi", max_tokens=13)
    await chat.ainvoke("hi")
    constructed = SamplingOptions(temperature=0.1, max_tokens=11, seed=7)
    bound = SamplingOptions(temperature=0.1, max_tokens=12, seed=7, top_p=0.5)
    called = SamplingOptions(temperature=0.1, max_tokens=13, seed=7, top_p=0.5)
    assert [request.sampling for request in engine.submitted] == [constructed, bound, called, constructed]


async def test_the_callers_keywords_are_left_as_they_are(engine: ScriptedEngine) -> None:
    keywords = {"engine": engine, "temperature": 0.1}
    assert ChatVLLM.model_validate(keywords).sampling == ChatVLLM.model_validate(keywords).sampling
    assert keywords == {"engine": engine, "temperature": 0.1}


@every_way
async def test_stop_strings_come_from_the_constructor_bind_or_the_call(engine: ScriptedEngine, ask: Ask) -> None:
    chat = ChatVLLM(engine=engine, stop=["a"])
    await ask(chat, "hi")
    await ask(chat.bind(stop=["b"]), "hi")
    await ask(chat, "hi", stop=["c", "d"])
    assert [request.sampling.stop for request in engine.submitted] == [["a"], ["b"], ["c", "d"]]


@every_way
async def test_priority_reaches_the_engine(engine: ScriptedEngine, ask: Ask) -> None:
    await ask(ChatVLLM(engine=engine), "hi")
    await ask(ChatVLLM(engine=engine), "hi", priority=URGENT)
    await ask(ChatVLLM(engine=engine).bind(priority=URGENT), "hi")
    assert [request.priority for request in engine.submitted] == [NORMAL, URGENT, URGENT]


@every_way
async def test_an_unknown_keyword_of_a_call_names_the_nearest(engine: ScriptedEngine, ask: Ask) -> None:
    with pytest.raises(ValueError, match="no option 'temprature'; did you mean 'temperature'"):
        await ask(ChatVLLM(engine=engine), "hi", temprature=0.5)
    assert engine.submitted == []


def test_an_unknown_keyword_of_the_constructor_names_the_nearest() -> None:
    with pytest.raises(ValidationError, match="no option 'max_token'; did you mean 'max_tokens'"):
        ChatVLLM(engine=ScriptedEngine(), max_token=5)


BAD = [
    ("temperature", math.nan),
    ("temperature", -1),
    ("temperature", "0.5"),
    ("top_p", 0),
    ("seed", 2**80),
    ("stop", ["x"] * 10_000),
]


@every_way
@pytest.mark.parametrize(("name", "value"), BAD)
async def test_bad_sampling_is_refused_before_the_engine_sees_it(
    distant: ScriptedEngine, ask: Ask, name: str, value: Any
) -> None:
    with pytest.raises(InvalidRequest, match=name):
        await ask(ChatVLLM(engine=distant), "hi", **{name: value})
    assert distant.submitted == []
    assert (await ask(ChatVLLM(engine=distant), "hi")).content == REPLY


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_model_with_bad_sampling_is_not_built(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=name):
        ChatVLLM(engine=ScriptedEngine(), **{name: value})


# Leaving


async def test_leaving_the_loop_over_the_chunks_frees_the_engine(engine: ScriptedEngine) -> None:
    engine.gate, engine.before_gate = asyncio.Event(), 1
    async for chunk in ChatVLLM(engine=engine).astream(MESSAGES):
        if chunk.content:
            break
    await until(lambda: engine.unfinished == 0)


async def test_closing_the_stream_frees_the_engine(engine: ScriptedEngine) -> None:
    engine.gate = asyncio.Event()
    chunks = ChatVLLM(engine=engine).astream(MESSAGES)
    await anext(chunks)
    assert engine.unfinished == 1
    await chunks.aclose()  # type: ignore[attr-defined]
    await until(lambda: engine.unfinished == 0)


@pytest.mark.parametrize("ask", [astreamed, ainvoked])
async def test_cancelling_the_task_frees_the_engine(engine: ScriptedEngine, ask: Ask) -> None:
    engine.gate = asyncio.Event()
    task = asyncio.ensure_future(ask(ChatVLLM(engine=engine), MESSAGES))
    await until(lambda: engine.unfinished == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: engine.unfinished == 0)


@pytest.mark.parametrize("ask", [astreamed, ainvoked])
async def test_a_timeout_frees_the_engine(engine: ScriptedEngine, ask: Ask) -> None:
    engine.gate = asyncio.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            admitted = asyncio.ensure_future(until(lambda: engine.unfinished == 1))
            admitted.add_done_callback(lambda _: limit.reschedule(0))
            await ask(ChatVLLM(engine=engine), MESSAGES)
    await until(lambda: engine.unfinished == 0)


async def test_one_that_leaves_does_not_disturb_the_others(engine: ScriptedEngine) -> None:
    engine.gate = asyncio.Event()
    chat = ChatVLLM(engine=engine)
    leaving, staying = (asyncio.ensure_future(chat.ainvoke(MESSAGES)) for _ in range(2))
    await until(lambda: engine.unfinished == 2)
    leaving.cancel()
    await until(lambda: engine.unfinished == 1)
    engine.loop.call_soon_threadsafe(engine.gate.set)
    assert (await staying).content == REPLY
    assert leaving.cancelled()


def test_leaving_a_blocking_stream_frees_the_engine(distant: ScriptedEngine) -> None:
    distant.gate, distant.before_gate = asyncio.Event(), 1
    for chunk in ChatVLLM(engine=distant).stream(MESSAGES):
        if chunk.content:
            break
    assert distant.unfinished == 0


async def test_what_a_stream_left_early_has_used_is_counted(engine: ScriptedEngine) -> None:
    got: list[AIMessageChunk] = []
    async with aclosing(ChatVLLM(engine=engine).astream(MESSAGES)) as chunks:
        async for chunk in chunks:
            got.append(chunk)
            if len(got) == 3:
                break
    usage = reduce(add, got).usage_metadata
    assert usage is not None
    assert usage["output_tokens"] == 2
    assert usage["input_tokens"] == len(engine.submitted[0].prompt_ids)


# Loops


def test_a_thread_without_a_loop_is_answered(distant: ScriptedEngine) -> None:
    chat = ChatVLLM(engine=distant)
    assert chat.invoke(MESSAGES).content == REPLY
    assert "".join(str(chunk.content) for chunk in chat.stream(MESSAGES)) == REPLY
    assert [answer.content for answer in chat.batch(["a", "b", "c"])] == [REPLY] * 3


def test_two_loops_one_after_the_other_are_answered(distant: ScriptedEngine) -> None:
    chat = ChatVLLM(engine=distant)
    assert [asyncio.run(chat.ainvoke(MESSAGES)).content for _ in range(2)] == [REPLY, REPLY]


async def test_a_blocking_call_on_another_loop_than_the_engines_is_answered(distant: ScriptedEngine) -> None:
    assert ChatVLLM(engine=distant).invoke(MESSAGES).content == REPLY


async def test_a_blocking_call_on_the_engines_own_loop_is_refused_in_a_plain_sentence() -> None:
    engine = ScriptedEngine()
    engine.loop = asyncio.get_running_loop()
    chat = ChatVLLM(engine=engine)
    with pytest.raises(SyncCallOnLoop, match="use ainvoke or astream"):
        chat.invoke("hi")
    with pytest.raises(SyncCallOnLoop, match="use ainvoke or astream"):
        list(chat.stream("hi"))
    assert engine.submitted == []


async def test_a_batch_is_in_the_engine_all_at_once_and_keeps_its_order(distant: ScriptedEngine) -> None:
    distant.gate = asyncio.Event()
    chat = ChatVLLM(engine=distant)
    prompts = [f"question {at}" for at in range(100)]
    batch = asyncio.ensure_future(asyncio.to_thread(chat.batch, prompts))
    await until(lambda: distant.unfinished == 100)
    distant.loop.call_soon_threadsafe(distant.gate.set)
    used = [answer.usage_metadata["input_tokens"] for answer in await batch if answer.usage_metadata]
    assert used == [chat.get_num_tokens_from_messages([HumanMessage(prompt)]) for prompt in prompts]


async def test_a_batch_on_the_engines_own_loop_is_refused_in_a_plain_sentence() -> None:
    engine = ScriptedEngine()
    engine.loop = asyncio.get_running_loop()
    with pytest.raises(SyncCallOnLoop, match="use ainvoke or astream"):
        ChatVLLM(engine=engine).batch(["a", "b"])
    with pytest.raises(SyncCallOnLoop, match="use ainvoke or astream"):
        list(ChatVLLM(engine=engine).batch_as_completed(["a", "b"]))


async def test_many_at_once_are_answered(engine: ScriptedEngine) -> None:
    answers = await ChatVLLM(engine=engine).abatch([f"question {at}" for at in range(20)])
    assert [answer.content for answer in answers] == [REPLY] * 20
    assert engine.unfinished == 0


# Failures, callbacks, caching


@every_way
async def test_an_exception_of_the_engine_reaches_the_caller_as_it_is(engine: ScriptedEngine, ask: Ask) -> None:
    died = EngineUnavailable("the vLLM engine has died")
    engine.replies = [died]
    with pytest.raises(EngineUnavailable) as caught:
        await ask(ChatVLLM(engine=engine), MESSAGES)
    assert caught.value is died
    await until(lambda: engine.unfinished == 0)


async def test_the_text_before_a_failure_has_been_streamed(engine: ScriptedEngine) -> None:
    engine.replies = [EngineUnavailable("the vLLM engine has died")]
    texts = []
    with pytest.raises(EngineUnavailable):
        async for chunk in ChatVLLM(engine=engine).astream(MESSAGES):
            texts.append(chunk.content)
    assert texts == ["", "Half an"]


class Listener(BaseCallbackHandler):
    def __init__(self) -> None:
        self.tokens: list[str] = []

    def on_llm_new_token(self, token: Any, **_: Any) -> None:
        self.tokens.append(token)


class AsyncListener(Listener, AsyncCallbackHandler):
    async def on_llm_new_token(self, token: Any, **_: Any) -> None:  # type: ignore[override]
        self.tokens.append(token)


@pytest.mark.parametrize("ask", [astreamed, streamed])
@pytest.mark.parametrize("listener", [Listener, AsyncListener])
async def test_a_callback_hears_each_chunk_once(engine: ScriptedEngine, ask: Ask, listener: type[Listener]) -> None:
    heard = listener()
    await ask(ChatVLLM(engine=engine), MESSAGES, config={"callbacks": [heard]})
    assert heard.tokens == ["", "The ", "answer ", "is ", "42. ", "答案是四十二。"]


async def test_events_of_a_chain_carry_each_chunk_once(engine: ScriptedEngine) -> None:
    chain = ChatPromptTemplate([("human", "{question}")]) | ChatVLLM(engine=engine)
    events = chain.astream_events({"question": "hi"}, version="v2")
    texts = [event["data"]["chunk"].content async for event in events if event["event"] == "on_chat_model_stream"]
    assert "".join(texts) == REPLY


async def test_the_cache_asks_once_and_again_for_another_temperature(engine: ScriptedEngine) -> None:
    cache = InMemoryCache()
    for temperature in (0.1, 0.1, 0.2):
        await ChatVLLM(engine=engine, temperature=temperature, cache=cache).ainvoke(MESSAGES)
    assert [request.sampling.temperature for request in engine.submitted] == [0.1, 0.2]


def test_the_cache_key_is_the_model_and_its_sampling() -> None:
    def key(**sampling: Any) -> str:
        return ChatVLLM(engine=ScriptedEngine(), **sampling)._get_llm_string()

    assert key() == key()
    assert key(temperature=0.1) == key(temperature=0.1)
    assert len({key(), key(temperature=0.1), key(max_tokens=5), key(stop=["x"])}) == 4
    assert "scripted" in key()


def test_the_engine_is_neither_shown_nor_dumped() -> None:
    chat = ChatVLLM(engine=ScriptedEngine())
    assert "ScriptedEngine" not in repr(chat)
    assert "engine" not in chat.model_dump()
