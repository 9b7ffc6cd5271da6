"""A real server on a real socket of the loopback, on the running event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    """Serve the application on a free port; yields its address."""
    config = uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=2)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    # Not `serve`: it looks for the end only ten times a second, and takes the test runner's signals.
    await server.startup()
    try:
        assert server.started
        host, port = server.servers[0].sockets[0].getsockname()
        yield f"http://{host}:{port}"
    finally:
        await until(lambda: not server.server_state.connections)  # what shutdown looks for ten times a second only
        await server.shutdown()


async def until(condition: Callable[[], Any], *, seconds: float = 10) -> None:
    """Wait until the condition holds, letting everything else run; fails after so many seconds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (what is waited for has no event)
            await asyncio.sleep(0.01)


async def events(response: httpx.Response) -> AsyncIterator[tuple[str, str]]:
    """Names and data of a stream's events as they come."""
    name = ""
    async for line in response.aiter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, value
