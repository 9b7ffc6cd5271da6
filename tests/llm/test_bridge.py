import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from typing import Any

import pytest

from llm.bridge import LoopThread, SyncCallOnLoop, iterate_blocking, iterate_from, wait_for
from llm.chat import ChatVLLM
from llm.protocol import EngineStopping
from tests.fakes import ScriptedEngine
from tests.llm.conftest import until


class Source:
    """An async generator that yields its items, then waits for ever or raises, and tells what happens to it."""

    def __init__(self, *items: int, end: str | Exception = "") -> None:
        self.items, self.end = items, end
        self.happened: list[str] = []
        self.loops: set[asyncio.AbstractEventLoop] = set()
        self.waiting = threading.Event()

    async def iterate(self) -> AsyncGenerator[int, None]:
        try:
            for item in self.items:
                self._here()
                yield item
            if isinstance(self.end, Exception):
                raise self.end
            if self.end == "waits":
                self.waiting.set()
                await asyncio.Event().wait()
            self.happened.append("exhausted")
        except asyncio.CancelledError:
            self.happened.append("cancelled")
            raise
        finally:
            for _ in range(5):  # an engine's abort takes some turns too
                await asyncio.sleep(0)
            self._here()
            self.happened.append("closed")

    def _here(self) -> None:
        self.loops.add(asyncio.get_running_loop())


@pytest.fixture(params=["own loop", "another loop"])
async def loop(request: pytest.FixtureRequest, far: LoopThread) -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop() if request.param == "own loop" else far.loop


def test_a_coroutine_runs_on_the_threads_loop(far: LoopThread) -> None:
    async def where() -> tuple[str, asyncio.AbstractEventLoop]:
        return threading.current_thread().name, asyncio.get_running_loop()

    assert far.run(where()) == ("groundwell-loop", far.loop)


def test_a_coroutines_exception_is_raised_here(far: LoopThread) -> None:
    async def fail() -> None:
        raise LookupError("not here")

    with pytest.raises(LookupError, match="not here"):
        far.run(fail())


def test_what_is_left_at_the_end_is_cancelled_and_the_thread_joined() -> None:
    happened: list[str] = []

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            happened.append("cancelled")

    async def leave_one_behind() -> asyncio.Task[None]:
        task = asyncio.create_task(wait_for_ever())
        await asyncio.sleep(0)
        return task

    with LoopThread() as thread:
        task = thread.run(leave_one_behind())
    assert happened == ["cancelled"]
    assert task.cancelled()
    assert thread.loop.is_closed()
    assert not thread._thread.is_alive()


def test_a_generator_left_open_is_closed_at_the_end() -> None:
    source = Source(1, 2)
    with LoopThread() as thread:
        items = source.iterate()

        async def first() -> int:
            return await anext(items)

        assert thread.run(first()) == 1
    assert source.happened == ["closed"]


def test_the_thread_ends_when_the_block_raises() -> None:
    with pytest.raises(LookupError), LoopThread() as thread:
        raise LookupError
    assert not thread._thread.is_alive()


async def test_waiting_for_the_own_loop_is_refused_in_a_plain_sentence() -> None:
    async def never() -> None:
        raise AssertionError("must not run")

    with pytest.raises(SyncCallOnLoop, match="use ainvoke or astream"):
        wait_for(never(), asyncio.get_running_loop())


async def test_items_come_in_order(loop: asyncio.AbstractEventLoop) -> None:
    source = Source(1, 2, 3)
    assert [item async for item in iterate_from(source.iterate(), loop)] == [1, 2, 3]
    assert source.happened == ["exhausted", "closed"]
    assert source.loops == {loop}


async def test_an_exception_comes_after_the_items(loop: asyncio.AbstractEventLoop) -> None:
    error, got = LookupError("broken"), []
    source = Source(1, 2, end=error)
    with pytest.raises(LookupError) as caught:
        async for item in iterate_from(source.iterate(), loop):
            got.append(item)
    assert caught.value is error
    assert got == [1, 2]
    assert source.happened == ["closed"]


async def test_leaving_early_closes_the_generator_on_its_own_loop(loop: asyncio.AbstractEventLoop) -> None:
    source = Source(1, 2, 3)
    async with aclosing(iterate_from(source.iterate(), loop)) as items:
        async for _ in items:
            break
    assert source.happened == ["closed"]
    assert source.loops == {loop}


async def test_cancelling_while_an_item_is_awaited_cancels_it_there_and_closes(
    loop: asyncio.AbstractEventLoop,
) -> None:
    source = Source(1, end="waits")

    async def consume() -> None:
        async with aclosing(iterate_from(source.iterate(), loop)) as items:
            async for _ in items:
                pass

    task = asyncio.create_task(consume())
    await until(source.waiting.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.happened == ["cancelled", "closed"]
    assert source.loops == {loop}


async def test_a_timeout_while_an_item_is_awaited_closes(loop: asyncio.AbstractEventLoop) -> None:
    source = Source(end="waits")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit, aclosing(iterate_from(source.iterate(), loop)) as items:
            waiting = asyncio.ensure_future(until(source.waiting.is_set))
            waiting.add_done_callback(lambda _: limit.reschedule(0))
            await anext(items)
    assert source.happened == ["cancelled", "closed"]


def test_items_come_in_order_without_a_loop_here(far: LoopThread) -> None:
    source = Source(1, 2, 3)
    assert list(iterate_blocking(source.iterate(), far.loop)) == [1, 2, 3]
    assert source.happened == ["exhausted", "closed"]
    assert source.loops == {far.loop}


def test_an_exception_comes_after_the_items_without_a_loop_here(far: LoopThread) -> None:
    error, got = LookupError("broken"), []
    with pytest.raises(LookupError) as caught:
        for item in iterate_blocking(Source(1, 2, end=error).iterate(), far.loop):
            got.append(item)
    assert caught.value is error
    assert got == [1, 2]


def test_leaving_early_closes_without_a_loop_here(far: LoopThread) -> None:
    source = Source(1, 2, 3)
    with closing(iterate_blocking(source.iterate(), far.loop)) as items:
        assert next(items) == 1
    assert source.happened == ["closed"]
    assert source.loops == {far.loop}


def test_what_the_garbage_collector_finds_on_the_far_loop_is_closed_there(far: LoopThread) -> None:
    source = Source(1, 2, 3)
    items = iterate_blocking(source.iterate(), far.loop)
    assert next(items) == 1
    left_open = [items]
    del items

    async def drop() -> None:
        left_open.clear()  # closes it, as a collection on this thread does
        async with asyncio.timeout(5):
            while source.happened != ["closed"]:  # noqa: ASYNC110  (what is waited for has no event)
                await asyncio.sleep(0)

    far.run(drop())


def test_a_loop_that_ends_closes_what_is_open_without_a_word(far: LoopThread, caplog: pytest.LogCaptureFixture) -> None:
    sources = [Source(1, 2, 3) for _ in range(20)]

    async def outer(source: Source) -> AsyncGenerator[int, None]:
        async with aclosing(iterate_from(source.iterate(), far.loop)) as items:
            async for item in items:
                yield item

    async def leave_open() -> list[Any]:
        opened = [outer(source) for source in sources]
        for items in opened:
            await anext(items)
        return opened

    assert len(asyncio.run(leave_open())) == 20
    assert [source.happened for source in sources] == [["closed"]] * 20
    assert not caplog.records


async def test_blocking_iteration_on_the_own_loop_is_refused() -> None:
    with pytest.raises(SyncCallOnLoop):
        list(iterate_blocking(Source(1).iterate(), asyncio.get_running_loop()))


async def test_a_batch_on_the_own_loop_is_refused_before_its_threads_wait_for_it() -> None:
    engine = ScriptedEngine("one", "two")
    assert engine.loop is asyncio.get_running_loop()
    with pytest.raises(SyncCallOnLoop, match="use ainvoke or astream"):
        ChatVLLM(engine=engine).batch(["first", "second"])


async def test_a_loop_that_is_closed_says_that_the_engine_is_stopped() -> None:
    with LoopThread() as far:
        pass
    with pytest.raises(EngineStopping, match="stopped"):
        wait_for(asyncio.sleep(0), far.loop)
    with pytest.raises(EngineStopping, match="stopped"):
        await anext(iterate_from(Source(1).iterate(), far.loop))
