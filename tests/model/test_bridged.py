"""Callers on other loops and threads than the engine's: all are answered, none hangs, the one mistake is named."""

import asyncio
import concurrent.futures
import threading

import pytest

from llm.bridge import SyncCallOnLoop
from llm.chat import ChatVLLM
from llm.engine import Engine

QUESTION = "What is the capital of France?"

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def chat(engine: Engine) -> ChatVLLM:
    return ChatVLLM(engine=engine, max_tokens=8)


async def streamed(chat: ChatVLLM) -> str:
    return "".join([str(chunk.content) async for chunk in chat.astream(QUESTION)])


def test_two_event_loops_one_after_the_other(chat: ChatVLLM) -> None:
    for _ in range(2):
        assert "Paris" in str(asyncio.run(chat.ainvoke(QUESTION)).content)
        assert "Paris" in asyncio.run(streamed(chat))


def test_a_blocking_call_in_worker_threads(chat: ChatVLLM) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all("Paris" in str(answer.content) for answer in pool.map(chat.invoke, [QUESTION] * 4))


async def test_a_blocking_call_within_a_running_loop_that_is_not_the_engines(chat: ChatVLLM) -> None:
    """As in a notebook's cell, or by mistake in an `async def`."""
    assert "Paris" in str(chat.invoke(QUESTION).content)
    assert "Paris" in "".join(str(chunk.content) for chunk in chat.stream(QUESTION))
    assert "Paris" in str((await chat.ainvoke(QUESTION)).content)


@pytest.mark.parametrize("way", ["invoke", "stream", "batch"])
def test_a_blocking_call_on_the_engines_own_loop_is_refused_in_a_sentence(
    chat: ChatVLLM, engine: Engine, way: str
) -> None:
    async def by_mistake() -> None:
        list(getattr(chat, way)([QUESTION, QUESTION] if way == "batch" else QUESTION))

    future = asyncio.run_coroutine_threadsafe(by_mistake(), engine.loop)
    with pytest.raises(SyncCallOnLoop, match="use ainvoke or astream"):
        future.result()


def test_many_loops_and_threads_at_once(chat: ChatVLLM) -> None:
    answers: list[str] = []
    ways = [
        lambda: asyncio.run(streamed(chat)),
        lambda: str(asyncio.run(chat.ainvoke(QUESTION)).content),
        lambda: str(chat.invoke(QUESTION).content),
    ]
    threads = [threading.Thread(target=lambda way=way: answers.append(way())) for way in ways * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 9
    assert all("Paris" in answer for answer in answers)
