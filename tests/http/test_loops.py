"""Blocking calls in an async route, on each event loop that uvicorn runs on: Chroma and vLLM bring uvloop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvloop
from fastapi import FastAPI

from llm.bridge import LoopThread, SyncCallOnLoop
from llm.chat import ChatVLLM
from rag.app import create_app
from rag.chain import rag_chain
from rag.settings import Settings
from tests.fakes import ScriptedEngine, WordCountEmbedder
from tests.server import serving

QUESTION = "How many days of annual leave?"
ANSWER = "Full-time employees receive 25 days of annual leave."


def add_blocking_routes(app: FastAPI, own: ScriptedEngine, elsewhere: ScriptedEngine) -> None:
    """Async routes that call a chain's `invoke`: of the service's own engine, and of one that runs in a thread."""

    @app.get("/own")
    async def on_the_own_loop() -> str:
        chain = rag_chain(ChatVLLM(engine=own), app.state.service.library.retriever("default"))
        try:
            return chain.invoke(QUESTION)["answer"]
        except SyncCallOnLoop as error:
            return str(error)

    @app.get("/elsewhere")
    async def on_another_loop() -> str:
        chain = rag_chain(ChatVLLM(engine=elsewhere), app.state.service.library.retriever("default"))
        return chain.invoke(QUESTION)["answer"]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_blocking_call_in_an_async_route_works_or_names_the_async_call(
    store: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    own, elsewhere = ScriptedEngine(ANSWER), ScriptedEngine(ANSWER)

    @asynccontextmanager
    async def start_engine() -> AsyncIterator[ScriptedEngine]:
        assert own.loop is asyncio.get_running_loop()
        yield own

    async def ask() -> None:
        app = create_app(Settings(store={"path": store}), start_engine=start_engine, embedder=WordCountEmbedder())
        add_blocking_routes(app, own, elsewhere)
        async with (
            serving(app) as address,
            httpx.AsyncClient(base_url=address, trust_env=False, verify=False) as client,
        ):
            assert "use ainvoke or astream" in (await client.get("/own", timeout=30)).json()
            assert (await client.get("/elsewhere", timeout=30)).json() == ANSWER
            asked = {"question": QUESTION, "stream": False}
            answered = await client.post("/v1/knowledge-bases/default/ask", json=asked, timeout=30)
            assert answered.json()["answer"] == ANSWER

    with LoopThread() as thread, asyncio.Runner(loop_factory=new_loop) as runner:
        elsewhere.loop = thread.loop
        runner.run(ask())
