"""Whoever leaves frees the engine: within a second nothing runs, waits or holds a KV block. Prints the matrix."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_core.prompts import ChatPromptTemplate

from llm.bridge import LoopThread
from llm.chat import ChatVLLM
from llm.completion import VLLMCompletion
from llm.embeddings import Embedder
from llm.engine import Engine
from llm.protocol import EngineStopping
from rag.app import create_app
from rag.settings import Settings
from tests.model.gauges import busy, gauge, wait_until_idle
from tests.server import serving, until

COUNT = "Count from 1 to 1000. 从一数到一千。"
LONG = {"max_tokens": 1500, "ignore_eos": True}
ON_LOOP, ELSEWHERE = "on the engine's loop", "from another loop"

Leave = Callable[[Engine], Awaitable[None]]
Matrix = dict[tuple[str, str], float]


@pytest.fixture(scope="module")
def matrix(request: pytest.FixtureRequest) -> Iterator[Matrix]:
    """Seconds until the engine was idle, by who left and where; written as a table at the end."""
    seconds: Matrix = {}
    yield seconds
    lines = ["| left | seconds until idle, " + ON_LOOP + " | " + ELSEWHERE + " |", "|---|---|---|"]
    for row in dict.fromkeys(row for row, _ in seconds):
        cells = [f"{seconds[row, place]:.2f}" if (row, place) in seconds else "" for place in (ON_LOOP, ELSEWHERE)]
        lines.append(f"| {row} | {cells[0]} | {cells[1]} |")
    plugin = request.config.pluginmanager.getplugin
    with plugin("capturemanager").global_and_fixture_disabled():
        plugin("terminalreporter").write_line("\n" + "\n".join(lines))


def seconds_until_idle(engine: Engine) -> float:
    """Fails after one. The request afterwards makes a step whose gauges would show anything that still ran."""
    seconds = wait_until_idle(engine)
    ChatVLLM(engine=engine, max_tokens=1).invoke("Hi")
    wait_until_idle(engine)
    return seconds


def chat_on(engine: Engine) -> ChatVLLM:
    return ChatVLLM(engine=engine, **LONG)


def completion_on(engine: Engine) -> VLLMCompletion:
    return VLLMCompletion(engine=engine, **LONG)


async def drained(stream: AsyncIterator[Any]) -> None:
    async for _ in stream:
        pass


async def cancelled(work: Awaitable[Any], when: Callable[[], object]) -> None:
    """Start it, cancel it once the condition holds."""
    task = asyncio.ensure_future(work)
    try:
        await until(lambda: when() or task.done(), seconds=60)
    finally:
        assert task.cancel(), task
    with pytest.raises(asyncio.CancelledError):
        await task


async def break_off_a_stream(engine: Engine) -> None:
    async for chunk in chat_on(engine).astream(COUNT):
        if chunk.content:
            assert engine.unfinished == 1
            break


async def close_a_stream(engine: Engine) -> None:
    stream: Any = chat_on(engine).astream(COUNT)
    await anext(stream)
    assert engine.unfinished == 1
    await stream.aclose()


async def cancel_a_stream(engine: Engine) -> None:
    await cancelled(drained(chat_on(engine).astream(COUNT)), lambda: busy(engine))


async def cancel_ainvoke(engine: Engine) -> None:
    await cancelled(chat_on(engine).ainvoke(COUNT), lambda: busy(engine))


async def cancel_abatch(engine: Engine) -> None:
    await cancelled(
        chat_on(engine).abatch([COUNT, "Hello!", "你好！"]), lambda: engine.unfinished == 3 and busy(engine)
    )


async def time_out(engine: Engine) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            async for chunk in chat_on(engine).astream(COUNT):
                if chunk.content:
                    limit.reschedule(0)


async def cancel_in_prefill(engine: Engine) -> None:
    work = chat_on(engine).ainvoke("Count. " * 500, cache_salt=uuid.uuid4().hex)
    await cancelled(work, lambda: busy(engine))


async def cancel_in_the_queue(engine: Engine) -> None:
    many = [COUNT] * 20
    await cancelled(chat_on(engine).abatch(many), lambda: gauge("num_requests_waiting") >= 4)


async def cancel_n_choices(engine: Engine) -> None:
    work = chat_on(engine).ainvoke(COUNT, n=3, temperature=1.0)
    await cancelled(work, lambda: gauge("num_requests_running") == 3)


async def cancel_best_of(engine: Engine) -> None:
    work = chat_on(engine).ainvoke(COUNT, best_of=4, temperature=1.0)
    await cancelled(work, lambda: gauge("num_requests_running") == 4)


async def cancel_beam_search(engine: Engine) -> None:
    work = chat_on(engine).ainvoke(COUNT, use_beam_search=True, best_of=3)
    await cancelled(work, lambda: engine.unfinished == 3)


async def break_off_a_chain(engine: Engine) -> None:
    chain = ChatPromptTemplate([("human", "{question}")]) | chat_on(engine)
    async for chunk in chain.astream({"question": COUNT}):
        if chunk.content:
            break


async def break_off_events(engine: Engine) -> None:
    chain = ChatPromptTemplate([("human", "{question}")]) | chat_on(engine)
    async for event in chain.astream_events({"question": COUNT}, version="v2"):
        if event["event"] == "on_chat_model_stream" and event["data"]["chunk"].content:
            break


async def break_off_a_completion(engine: Engine) -> None:
    async for text in completion_on(engine).astream(COUNT):
        if text:
            break


async def cancel_a_completion_batch(engine: Engine) -> None:
    work = completion_on(engine).abatch([COUNT, "Once upon a time", "从前", "a"], n=2, temperature=1.0)
    await cancelled(work, lambda: gauge("num_requests_running") == 8)


async def cancel_a_completion_by_beams(engine: Engine) -> None:
    work = completion_on(engine).abatch([COUNT, "从前"], use_beam_search=True, best_of=3)
    await cancelled(work, lambda: engine.unfinished == 6)


WAYS: list[Leave] = [
    break_off_a_stream,
    close_a_stream,
    cancel_a_stream,
    cancel_ainvoke,
    cancel_abatch,
    time_out,
    cancel_in_prefill,
    cancel_in_the_queue,
    cancel_n_choices,
    cancel_best_of,
    cancel_beam_search,
    break_off_a_chain,
    break_off_events,
    break_off_a_completion,
    cancel_a_completion_batch,
    cancel_a_completion_by_beams,
]


@pytest.mark.parametrize("place", [ON_LOOP, ELSEWHERE])
@pytest.mark.parametrize("leave", WAYS, ids=lambda leave: leave.__name__)
def test_leaving_frees_the_engine(engine: Engine, matrix: Matrix, leave: Leave, place: str) -> None:
    wait_until_idle(engine, seconds=10)
    if place == ON_LOOP:
        asyncio.run_coroutine_threadsafe(leave(engine), engine.loop).result()  # type: ignore[arg-type]
    else:
        asyncio.run(leave(engine))  # type: ignore[arg-type]
    matrix[leave.__name__.replace("_", " "), place] = seconds_until_idle(engine)


@pytest.mark.parametrize("model", [chat_on, completion_on], ids=["chat", "completion"])
def test_leaving_a_blocking_stream_frees_the_engine(engine: Engine, matrix: Matrix, model: Any) -> None:
    wait_until_idle(engine, seconds=10)
    for chunk in model(engine).stream(COUNT):
        if getattr(chunk, "content", chunk):
            assert engine.unfinished == 1
            break
    matrix[f"leave a blocking stream ({model.__name__.removesuffix('_on')})", ELSEWHERE] = seconds_until_idle(engine)


def test_one_that_leaves_does_not_disturb_the_others(engine: Engine) -> None:
    chat = ChatVLLM(engine=engine, max_tokens=40)
    alone = chat.invoke(COUNT).content

    async def leave_and_stay() -> str:
        staying = asyncio.create_task(chat.ainvoke(COUNT))
        await cancel_n_choices_beside(engine)
        return str((await staying).content)

    async def cancel_n_choices_beside(engine: Engine) -> None:
        work = chat_on(engine).ainvoke("你好", n=3, temperature=1.0)
        await cancelled(work, lambda: gauge("num_requests_running") >= 3)

    assert asyncio.run(leave_and_stay()) == alone
    wait_until_idle(engine)


@pytest.mark.parametrize("sampling", [{}, {"n": 3, "temperature": 1.0}, {"use_beam_search": True, "best_of": 3}])
def test_stopping_breaks_off_whatever_runs(engine: Engine, sampling: dict[str, Any]) -> None:
    wait_until_idle(engine, seconds=10)

    async def stop_while_it_runs() -> None:
        task = asyncio.create_task(chat_on(engine).ainvoke(COUNT, **sampling))
        await until(lambda: engine.unfinished == sampling.get("best_of", sampling.get("n", 1)), seconds=60)
        await engine.stop_accepting()
        with pytest.raises(EngineStopping, match="broken off"):
            await task

    try:
        asyncio.run_coroutine_threadsafe(stop_while_it_runs(), engine.loop).result()
        wait_until_idle(engine)
    finally:
        engine._stopping = False  # for the tests that follow


# Over HTTP


ASK = {"question": "Tell me all about the Terrano 3.", "max_tokens": 1500}
CHAT = {"model": "@default", "messages": [{"role": "user", "content": ASK["question"]}], "max_tokens": 1500}
ASK_AT = "/v1/knowledge-bases/default/ask"
ROUTES = {
    # The small profile quotes: it sends text only after the model has ended, but the sources with its first token.
    "ask": (ASK_AT, ASK, "sources"),
    "ask, open": (ASK_AT, ASK | {"grounding": "open"}, "text"),
    "chat completions": ("/v1/chat/completions", CHAT, "choices"),
}
"""Path, body, and what a streaming client reads, while the model writes, before it leaves."""


@pytest.fixture(scope="module")
def address_elsewhere(engine: Engine, embedder: Embedder, store: Path) -> Iterator[str]:
    """The service on another loop than the engine's."""

    @asynccontextmanager
    async def start_engine() -> AsyncIterator[Engine]:
        yield engine

    with LoopThread() as thread:
        running = serving(create_app(Settings(store={"path": store}), start_engine=start_engine, embedder=embedder))
        yield thread.run(running.__aenter__())
        thread.run(running.__aexit__(None, None, None))


@pytest.mark.parametrize("place", [ON_LOOP, ELSEWHERE])
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
def test_a_client_that_leaves_frees_the_engine(
    engine: Engine, matrix: Matrix, request: pytest.FixtureRequest, place: str, route: str, stream: bool
) -> None:
    path, body, last_read = ROUTES[route]
    base = request.getfixturevalue("address" if place == ON_LOOP else "address_elsewhere")
    wait_until_idle(engine, seconds=10)
    asyncio.run(leave_over_http(engine, base + path, body | {"stream": stream}, last_read))
    matrix[f"client leaves {route}, {'' if stream else 'not '}streaming", place] = seconds_until_idle(engine)


async def leave_over_http(engine: Engine, url: str, body: dict[str, Any], last_read: str) -> None:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        if not body["stream"]:
            await cancelled(client.post(url, json=body), lambda: busy(engine))
            return
        async with client.stream("POST", url, json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: ") and last_read in json.loads(line[6:]):
                    assert engine.unfinished == 1
                    return
        raise AssertionError(f"the stream has no {last_read}")
