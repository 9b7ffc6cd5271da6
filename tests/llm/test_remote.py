"""`ChatRemote` against a real HTTP server on the loopback: what comes back, and what happens when somebody leaves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import cache, reduce
from operator import add
from typing import Any

import openai
import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_core.runnables import ConfigurableField
from pydantic import BaseModel

from llm.protocol import EngineBusy, EngineUnavailable, InvalidRequest, UnknownAdapter
from llm.remote import ChatRemote
from llm.remote.count import NoTokenCount
from tests.remote_server import MODEL, RemoteServer, refusal
from tests.server import serving, until

REPLY = "The answer is 42. 答案是四十二。"
MESSAGES = [SystemMessage("Be brief."), HumanMessage("你好 {x}?")]

Ask = Callable[..., Awaitable[AIMessage]]


@pytest.fixture
def server() -> RemoteServer:
    return RemoteServer()


@pytest.fixture
async def address(server: RemoteServer) -> AsyncIterator[str]:
    async with serving(server.app()) as address:
        yield f"{address}/v1"


@pytest.fixture
def chat(address: str) -> ChatRemote:
    return remote(address)


@cache
def http_client() -> Any:
    """Without connections that stay open after a test; one for all tests, since the certificates take 60 ms."""
    return openai.DefaultHttpxClient(headers={"Connection": "close"})


def remote(address: str, **options: Any) -> ChatRemote:
    given = {"base_url": address, "model": MODEL, "max_retries": 0, "http_client": http_client()}
    return ChatRemote(**given | options)


async def astreamed(chat: Any, *args: Any, **kwargs: Any) -> AIMessage:
    return reduce(add, [chunk async for chunk in chat.astream(*args, **kwargs)])


async def ainvoked(chat: Any, *args: Any, **kwargs: Any) -> AIMessage:
    return await chat.ainvoke(*args, **kwargs)


async def streamed(chat: Any, *args: Any, **kwargs: Any) -> AIMessage:
    return await asyncio.to_thread(lambda: reduce(add, chat.stream(*args, **kwargs)))


async def invoked(chat: Any, *args: Any, **kwargs: Any) -> AIMessage:
    return await asyncio.to_thread(chat.invoke, *args, **kwargs)


every_way = pytest.mark.parametrize("ask", [astreamed, ainvoked, streamed, invoked])
streaming = pytest.mark.parametrize("ask", [astreamed, streamed])


@every_way
async def test_every_way_of_asking_gives_the_same_answer(chat: ChatRemote, server: RemoteServer, ask: Ask) -> None:
    answer = await ask(chat, MESSAGES)
    assert answer.content == REPLY
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.response_metadata["model_name"] == MODEL
    assert answer.response_metadata["model_provider"] == "vllm"
    assert answer.additional_kwargs == {}
    assert server.running == 0


@every_way
@pytest.mark.parametrize("counts_on_the_way", [True, False])
async def test_usage_is_exact(chat: ChatRemote, server: RemoteServer, ask: Ask, counts_on_the_way: bool) -> None:
    server.counts_on_the_way = counts_on_the_way
    answer = await ask(chat, MESSAGES)
    usage = answer.usage_metadata
    assert usage
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (7, 5, 12)
    assert usage["input_token_details"]["cache_read"] == 3


@every_way
@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_reasoning_is_kept(chat: ChatRemote, server: RemoteServer, ask: Ask, name: str) -> None:
    server.reasoning, server.reasoning_name = ("先想", "一想"), name
    answer = await ask(chat, MESSAGES)
    assert answer.content == REPLY
    assert answer.additional_kwargs == {"reasoning_content": "先想一想"}
    assert [block["type"] for block in answer.content_blocks] == ["reasoning", "text"]


@every_way
async def test_tool_calls_come_whole(chat: ChatRemote, server: RemoteServer, ask: Ask) -> None:
    server.tools = (("weather", '{"city": "北京"}'), ("weather", '{"city": "Pico"}'))
    answer = await ask(chat.bind_tools([weather]), MESSAGES)
    assert [call["args"] for call in answer.tool_calls] == [{"city": "北京"}, {"city": "Pico"}]
    assert [call["id"] for call in answer.tool_calls] == ["call-0", "call-1"]
    assert answer.response_metadata["finish_reason"] == "tool_calls"


async def test_a_tool_calls_arguments_come_in_fragments(chat: ChatRemote, server: RemoteServer) -> None:
    server.tools = (("weather", '{"city": "北京"}'),)
    fragments = [
        call async for chunk in chat.bind_tools([weather]).astream(MESSAGES) for call in chunk.tool_call_chunks
    ]
    assert fragments[0]["name"] == "weather"
    assert "".join(fragment["args"] or "" for fragment in fragments) == '{"city": "北京"}'
    assert len(fragments) == 1 + len('{"city": "北京"}')


@every_way
async def test_a_cut_answer_says_so(chat: ChatRemote, server: RemoteServer, ask: Ask) -> None:
    server.finish_reason = "length"
    answer = await ask(chat, MESSAGES)
    assert answer.response_metadata["finish_reason"] == "length"


@every_way
async def test_log_probabilities_have_the_shape_of_openais(chat: ChatRemote, ask: Ask) -> None:
    answer = await ask(chat, MESSAGES, logprobs=2)
    places = answer.response_metadata["logprobs"]["content"]
    assert "".join(place["token"] for place in places) == REPLY
    likeliest = [[each["logprob"] for each in place["top_logprobs"]] for place in places]
    assert likeliest == [[-0.25, -0.5]] * 5
    assert answer.response_metadata["logprobs"].keys() == {"content"}


async def test_log_probabilities_of_the_prompt_have_the_shape_of_chatvllms(chat: ChatRemote) -> None:
    answer = await chat.ainvoke(MESSAGES, prompt_logprobs=1)
    first, second = answer.response_metadata["prompt_logprobs"]
    assert first is None
    assert (second["token"], second["logprob"]) == ("吗", -2.0)
    assert [place["token"] for place in second["top_logprobs"]] == ["？", "吗"]


async def test_chunks_are_those_of_chatvllm(chat: ChatRemote) -> None:
    chunks = [chunk async for chunk in chat.astream(MESSAGES)]
    assert [chunk.content for chunk in chunks] == ["", "The ", "answer ", "is ", "42. ", "答案是四十二。"]
    assert [chunk.chunk_position for chunk in chunks] == [None] * 5 + ["last"]
    assert ["finish_reason" in chunk.response_metadata for chunk in chunks] == [False] * 5 + [True]
    assert ["model_name" in chunk.response_metadata for chunk in chunks] == [True] + [False] * 5
    usages = [chunk.usage_metadata for chunk in chunks]
    assert [usage["input_tokens"] for usage in usages if usage] == [7, 0, 0, 0, 0, 0]
    assert [usage["output_tokens"] for usage in usages if usage] == [0, 1, 1, 1, 1, 1]


async def test_a_stream_left_early_has_counted_what_it_used(chat: ChatRemote, server: RemoteServer) -> None:
    server.gate, server.before_gate = asyncio.Event(), 2
    got: list[AIMessageChunk] = []
    async with aclosing(chat.astream(MESSAGES)) as chunks:
        async for chunk in chunks:
            got.append(chunk)
            if len(got) == 3:
                break
    usage = reduce(add, got).usage_metadata
    assert usage
    assert (usage["input_tokens"], usage["output_tokens"]) == (7, 2)


@streaming
async def test_a_stream_that_breaks_off_is_an_error(chat: ChatRemote, server: RemoteServer, ask: Ask) -> None:
    server.breaks_off_after = 2
    with pytest.raises(EngineUnavailable, match="broke off"):
        await ask(chat, MESSAGES)


@streaming
@pytest.mark.parametrize(("code", "kind"), [(400, InvalidRequest), (500, EngineUnavailable), (503, EngineBusy)])
async def test_an_error_within_a_stream_is_ours(
    chat: ChatRemote, server: RemoteServer, ask: Ask, code: int, kind: type[Exception]
) -> None:
    server.error_after, server.error_code = 1, code
    with pytest.raises(kind, match="内存不足") as caught:
        await ask(chat, MESSAGES)
    assert type(caught.value) is kind


# Several choices


async def test_choices_are_kept_apart_each_with_its_own_usage(chat: ChatRemote) -> None:
    result = await chat.agenerate([MESSAGES], n=3, temperature=0.7)
    (choices,) = result.generations
    assert [choice.text for choice in choices] == [REPLY] * 3
    usages = [choice.message.usage_metadata for choice in choices]  # type: ignore[union-attr]
    assert [(usage["input_tokens"], usage["output_tokens"]) for usage in usages] == [(7, 5)] * 3


async def test_best_of_keeps_the_likeliest_best_first(chat: ChatRemote, server: RemoteServer) -> None:
    result = await chat.agenerate([MESSAGES], n=2, best_of=4, temperature=0.7)
    (choices,) = result.generations
    sums = [choice.generation_info["cumulative_logprob"] for choice in choices if choice.generation_info]
    assert sums == pytest.approx([-2.5 / 4, -2.5 / 3])
    assert all("logprobs" not in (choice.generation_info or {}) for choice in choices)
    assert (server.received[0]["n"], server.received[0]["logprobs"]) == (4, True)


@streaming
async def test_several_choices_are_not_streamed(chat: ChatRemote, server: RemoteServer, ask: Ask) -> None:
    with pytest.raises(InvalidRequest, match="whole answers"):
        await ask(chat.bind(n=2, temperature=0.7), MESSAGES)
    assert server.received == []


# Leaving


async def test_leaving_the_loop_over_the_chunks_closes_the_connection(chat: ChatRemote, server: RemoteServer) -> None:
    server.gate = asyncio.Event()
    async for chunk in chat.astream(MESSAGES):
        if chunk.content:
            break
    await until(lambda: server.running == 0)


async def test_closing_the_stream_closes_the_connection(chat: ChatRemote, server: RemoteServer) -> None:
    server.gate = asyncio.Event()
    chunks = chat.astream(MESSAGES)
    await anext(chunks)
    await until(lambda: server.running == 1)
    await chunks.aclose()  # type: ignore[attr-defined]
    await until(lambda: server.running == 0)


@pytest.mark.parametrize("ask", [astreamed, ainvoked])
async def test_cancelling_the_task_closes_the_connection(chat: ChatRemote, server: RemoteServer, ask: Ask) -> None:
    server.gate = asyncio.Event()
    task = asyncio.ensure_future(ask(chat, MESSAGES))
    await until(lambda: server.running == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: server.running == 0)


@pytest.mark.parametrize("ask", [astreamed, ainvoked])
async def test_a_timeout_closes_the_connection(chat: ChatRemote, server: RemoteServer, ask: Ask) -> None:
    server.gate = asyncio.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            admitted = asyncio.ensure_future(until(lambda: server.running == 1))
            admitted.add_done_callback(lambda _: limit.reschedule(0))
            await ask(chat, MESSAGES)
    await until(lambda: server.running == 0)


async def test_leaving_a_blocking_stream_closes_the_connection(chat: ChatRemote, server: RemoteServer) -> None:
    server.gate = asyncio.Event()

    def leave() -> None:
        for chunk in chat.stream(MESSAGES):
            if chunk.content:
                break

    await asyncio.to_thread(leave)
    await until(lambda: server.running == 0)


async def test_one_that_leaves_does_not_disturb_the_others(chat: ChatRemote, server: RemoteServer) -> None:
    server.gate = asyncio.Event()
    leaving, staying = (asyncio.ensure_future(chat.ainvoke(MESSAGES)) for _ in range(2))
    await until(lambda: server.running == 2)
    leaving.cancel()
    await until(lambda: server.running == 1)
    server.gate.set()
    assert (await staying).content == REPLY
    assert leaving.cancelled()


# Loops, threads and what LangChain wants


async def test_one_model_answers_on_one_event_loop_after_another(chat: ChatRemote) -> None:
    async def three() -> list[Any]:
        return [answer.content for answer in await asyncio.gather(*(chat.ainvoke(MESSAGES) for _ in range(3)))]

    for _ in range(3):
        assert await asyncio.to_thread(asyncio.run, three()) == [REPLY] * 3
    assert await three() == [REPLY] * 3


async def test_many_ask_at_once(chat: ChatRemote) -> None:
    answers = await chat.abatch([MESSAGES] * 40)
    assert [answer.content for answer in answers] == [REPLY] * 40


class Listener(BaseCallbackHandler):
    def __init__(self) -> None:
        self.tokens: list[str] = []

    def on_llm_new_token(self, token: str, **_: Any) -> None:
        self.tokens.append(token)


@streaming
async def test_a_callback_hears_each_chunk_once(chat: ChatRemote, ask: Ask) -> None:
    heard = Listener()
    await ask(chat, MESSAGES, config={"callbacks": [heard]})
    assert heard.tokens == ["", "The ", "answer ", "is ", "42. ", "答案是四十二。"]


async def test_the_cache_asks_once_and_again_for_another_temperature(address: str, server: RemoteServer) -> None:
    cache = InMemoryCache()
    for temperature in (0.1, 0.1, 0.2):
        await remote(address, temperature=temperature, cache=cache).ainvoke(MESSAGES)
    assert [body["temperature"] for body in server.received] == [0.1, 0.2]


def test_the_cache_key_is_the_server_the_model_and_its_sampling() -> None:
    def key(**options: Any) -> str:
        return remote("http://127.0.0.1:1/v1", **options)._get_llm_string()

    assert key() == key()
    others = [{"temperature": 0.1}, {"stop": ["x"]}, {"adapter": "a"}, {"base_url": "http://127.0.0.1:2/v1"}]
    assert len({key(), *(key(**options) for options in others), key(model="other")}) == 6
    assert "secret" not in key(api_key="secret")


async def test_a_rate_limiter_is_asked(address: str, server: RemoteServer) -> None:
    limiter = InMemoryRateLimiter(requests_per_second=0.0001, max_bucket_size=1)
    limiter.available_tokens = 1
    chat = remote(address, rate_limiter=limiter)
    await chat.ainvoke(MESSAGES)
    assert not limiter.acquire(blocking=False)


async def test_options_can_be_configured_per_call(chat: ChatRemote, server: RemoteServer) -> None:
    flexible = chat.configurable_fields(temperature=ConfigurableField("temperature"))
    await flexible.ainvoke("hi", config={"configurable": {"temperature": 0.5}})
    await flexible.ainvoke("hi")
    assert [body["temperature"] for body in server.received] == [0.5, 0.0]


async def test_the_key_of_another_service_is_not_sent(
    address: str, server: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "another service's")
    await remote(address).ainvoke("hi")
    await remote(address, api_key="ours").ainvoke("hi")
    assert [headers["authorization"] for headers in server.headers] == ["Bearer EMPTY", "Bearer ours"]


# Counting


async def test_messages_are_counted_by_the_server_tools_included(chat: ChatRemote, server: RemoteServer) -> None:
    count = chat.get_num_tokens_from_messages
    alone = await asyncio.to_thread(count, MESSAGES)
    with_tools = await asyncio.to_thread(count, MESSAGES, [weather])
    assert alone < with_tools
    asked = server.received[1]
    assert [message["content"] for message in asked["messages"]] == ["Be brief.", "你好 {x}?"]
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["weather"]
    assert await asyncio.to_thread(chat.get_num_tokens, "你好") == 6


async def test_what_is_counted_is_what_is_sent(chat: ChatRemote, server: RemoteServer) -> None:
    chat.chat_template_kwargs = {"enable_thinking": False}
    await asyncio.to_thread(chat.get_num_tokens_from_messages, MESSAGES, [weather])
    await chat.bind_tools([weather]).ainvoke(MESSAGES)
    counted, sent = server.received
    assert counted == {name: sent[name] for name in ("model", "messages", "tools", "chat_template_kwargs")}


async def test_a_server_without_tokenize_says_so() -> None:
    async with serving(RemoteServer(tokenizes=False).app()) as address:
        with pytest.raises(NoTokenCount, match=f"{address}/tokenize is not vLLM's"):
            await asyncio.to_thread(remote(f"{address}/v1").get_num_tokens_from_messages, MESSAGES)


async def test_a_count_for_an_unknown_model_says_that_it_is_unknown(chat: ChatRemote, server: RemoteServer) -> None:
    server.answers = [refusal("The model `诗人` does not exist. Valid aliases: small.", 404)]
    with pytest.raises(UnknownAdapter, match="诗人"):
        await asyncio.to_thread(chat.get_num_tokens_from_messages, MESSAGES)


# Structured output


class City(BaseModel):
    """A city."""

    name: str
    people: int


def weather(city: str) -> str:
    """The weather in a city."""
    return city


@pytest.mark.parametrize("ask", [ainvoked, invoked])
@pytest.mark.parametrize("method", ["json_schema", "json_mode", "function_calling"])
async def test_structured_output_gives_an_object(chat: ChatRemote, server: RemoteServer, ask: Ask, method: str) -> None:
    written = '{"name": "北京", "people": 21000000}'
    server.words = (written[:9], written[9:])
    server.tools = (("City", written),) if method == "function_calling" else ()
    found = await ask(chat.with_structured_output(City, method=method), "北京?")
    assert found == City(name="北京", people=21_000_000)


async def test_a_cut_structured_answer_gives_the_message_beside_the_error(
    chat: ChatRemote, server: RemoteServer
) -> None:
    server.words, server.finish_reason = ('{"name": "北',), "length"
    found = await chat.with_structured_output(City, include_raw=True).ainvoke("北京?")
    assert found["raw"].content == '{"name": "北'
    assert found["parsed"] is None
    assert found["parsing_error"]
