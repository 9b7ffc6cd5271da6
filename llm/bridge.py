"""Crossing from one event loop, or from no loop at all, to the loop that owns the engine.

One item crosses at a time: nothing is queued, and cancelling or closing on this side cancels or closes on that one.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from llm.protocol import EngineStopping

Item = TypeVar("Item")
Given = TypeVar("Given", covariant=True)
END = object()
_closing: set["asyncio.Task[None]"] = set()


class SyncCallOnLoop(RuntimeError):
    """A blocking call came from the loop that would have to answer it."""


class LoopThread:
    """An event loop in a thread of its own, from `with` to the end of the block."""

    def __enter__(self) -> "LoopThread":
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._turn, name="groundwell-loop", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def run(self, coroutine: Coroutine[Any, Any, Item]) -> Item:
        """Run a coroutine on the loop and wait for its result."""
        return wait_for(coroutine, self.loop)

    def _turn(self) -> None:
        self.loop.run_forever()
        self.loop.run_until_complete(self._cancel_all())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def refuse_on(loop: asyncio.AbstractEventLoop) -> None:
    """Raise SyncCallOnLoop where a call would block the loop that has to answer it."""
    if _running_loop() is loop:
        raise SyncCallOnLoop(
            "a blocking call on the engine's own event loop would wait for itself: use ainvoke or astream"
        )


def wait_for(coroutine: Coroutine[Any, Any, Item], loop: asyncio.AbstractEventLoop) -> Item:
    """Run a coroutine on a loop of another thread and block until it is done; cancelled when the wait is broken off."""
    try:
        refuse_on(loop)
    except SyncCallOnLoop:
        coroutine.close()
        raise
    future = _submitted(coroutine, loop)
    try:
        return future.result()
    finally:
        future.cancel()  # no effect on a finished one


def iterate_blocking(items: AsyncGenerator[Item, None], loop: asyncio.AbstractEventLoop) -> Generator[Item, None, None]:
    """Iterate, from a thread without a loop, an async generator that runs on `loop`."""
    try:
        while (item := wait_for(_next_or_end(items), loop)) is not END:
            yield item
    finally:
        if _running_loop() is loop:  # left open, and found by the garbage collector there
            _keep(loop.create_task(_close(items)))
        else:
            wait_for(_close(items), loop)


def iterate_from(items: AsyncGenerator[Item, None], loop: asyncio.AbstractEventLoop) -> "Iterated[Item]":
    """Iterate, from any event loop, an async generator that runs on `loop`; on that loop itself nothing is added.

    Close what it returns.
    """
    return items if _running_loop() is loop else _FromElsewhere(items, loop)


class Iterated(Protocol[Given]):
    """What can be iterated and has to be closed."""

    def __aiter__(self) -> AsyncIterator[Given]: ...

    async def aclose(self) -> None:
        """End what runs."""


class _FromElsewhere(Generic[Item]):
    """No async generator: a loop that ends closes those that are open all at once, the outer and the inner one."""

    def __init__(self, items: AsyncGenerator[Item, None], loop: asyncio.AbstractEventLoop) -> None:
        self._items, self._loop = items, loop

    def __aiter__(self) -> "_FromElsewhere[Item]":
        return self

    async def __anext__(self) -> Item:
        if (item := await _hop(_next_or_end(self._items), self._loop)) is END:
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        await _hop(_close(self._items), self._loop)


async def on_loop(coroutine: Coroutine[Any, Any, Item], loop: asyncio.AbstractEventLoop) -> Item:
    """Await, from any event loop, a coroutine that runs on `loop`; cancelling the wait cancels it there."""
    return await (coroutine if asyncio.get_running_loop() is loop else _hop(coroutine, loop))


async def _hop(coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Any:
    return await asyncio.wrap_future(_submitted(coroutine, loop))


def _submitted(coroutine: Coroutine[Any, Any, Item], loop: asyncio.AbstractEventLoop) -> Future[Item]:
    try:
        return asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError as error:
        coroutine.close()
        raise EngineStopping("the engine has been stopped, and its event loop closed") from error


async def _next_or_end(items: AsyncGenerator[Any, None]) -> Any:
    return await anext(items, END)


async def _close(items: AsyncGenerator[Any, None]) -> None:
    while True:
        try:
            return await items.aclose()
        except RuntimeError as error:
            if "already running" not in str(error):
                raise
            await asyncio.sleep(0)  # a cancelled step is still unwinding


def _keep(task: "asyncio.Task[None]") -> None:
    """A loop itself holds its tasks weakly."""
    _closing.add(task)
    task.add_done_callback(_closing.discard)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
