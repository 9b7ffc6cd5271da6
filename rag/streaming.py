"""Responses that end their work when the client leaves."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, Generic, TypeVar

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Result = TypeVar("Result")
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def while_connected(receive: Receive, work: Awaitable[Result]) -> Result:
    """Await `work`, cancelled when the client leaves. The request's body must have been read. Raises ClientDisconnect.

    Starlette cancels no handler and, by ASGI 2.4, notices a client that left only at the next send, which may be a
    long prefill away.
    """
    task = asyncio.ensure_future(work)
    leaving = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        leaving.cancel()
        task.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def first_of(events: AsyncGenerator[Result, None], receive: Receive) -> Result:
    """The first event: what fails before it is raised here, while there is still a status to send."""
    try:
        return await while_connected(receive, anext(events))
    except BaseException:
        await events.aclose()
        raise


class EventStream(Response, Generic[Result]):
    """Server-Sent Events (https://html.spec.whatwg.org/multipage/server-sent-events.html) of events that have begun.

    `write` makes bytes of an event, `failed` of what ends the stream early. The generator is closed when it ends, when
    it fails, or as soon as the client leaves.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: Result,
        events: AsyncGenerator[Result, None],
        *,
        write: Callable[[Result], bytes],
        failed: Callable[[Exception], bytes],
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._first, self._events, self._write, self._failed = first, events, write, failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            with suppress(ClientDisconnect, OSError):
                await while_connected(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._chunks():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        yield self._write(self._first)
        try:
            async for event in self._events:
                yield self._write(event)
        except Exception as error:  # the status has been sent: the failure becomes the last event
            yield self._failed(error)


def encode(data: Any, *, name: str | None = None) -> bytes:
    """One event, its JSON on one line."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + orjson.dumps(data) + b"\n\n"
