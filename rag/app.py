"""The HTTP application: its lifespan builds everything once and passes it down; `serve` runs it until a signal."""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from types import FrameType

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from ingest.knowledge_bases import EmbedderMismatch, UnknownKnowledgeBase
from ingest.store import EmbedderLike
from ingest.terms import terms
from llm.chat import ChatVLLM
from llm.engine import Engine
from llm.models import ModelNotFound
from llm.protocol import EngineLike, EngineStartFailed
from llm.rerank import NoReranker, Reranker
from rag import errors
from rag.library import EmptyKnowledgeBase, Library
from rag.routes import ask, openai, operations
from rag.service import Service
from rag.settings import Settings

StartEngine = Callable[[], AbstractAsyncContextManager[EngineLike]]


def create_app(
    settings: Settings, *, start_engine: StartEngine | None = None, embedder: EmbedderLike | None = None
) -> FastAPI:
    """The application; engine and embedder are the settings' unless a test gives its own."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.starting = asyncio.current_task()
        async with (start_engine or (lambda: Engine.start(settings.engine)))() as engine:
            service = app.state.service = await asyncio.to_thread(build_service, settings, engine, embedder)
            app.state.starting = None
            with closing(service.library):
                yield

    app = FastAPI(title="Groundwell", lifespan=lifespan, docs_url=None, redoc_url=None)
    for router in (ask.router, openai.router, operations.router):
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=operations.WEB), name="static")
    errors.install(app)
    return app


def build_service(settings: Settings, engine: EngineLike, embedder: EmbedderLike | None = None) -> Service:
    """The service's parts. Raises EmbedderMismatch when its own knowledge base was made with another embedder."""
    library = build_library(settings, embedder)
    profile = settings.answer.profile_for(engine.parameters)
    return Service(
        engine=engine,
        chat=ChatVLLM(engine=engine, temperature=settings.answer.temperature, max_tokens=profile.max_tokens),
        library=library,
        profile=profile,
        grounding=settings.grounding,
        default_knowledge_base=settings.store.knowledge_base,
    )


def build_library(settings: Settings, embedder: EmbedderLike | None = None) -> Library:
    """The knowledge bases and what searches them, loaded: else somebody's first question would wait for that.

    Raises EmbedderMismatch as above.
    """
    from llm.embeddings import Embedder

    embedder = embedder or Embedder(settings.embedder)
    embedder.embed_query("warm-up")
    terms("预热")
    retrieval = settings.retrieval
    reranker = Reranker(options=settings.reranker) if retrieval.rerank else None
    if reranker:
        reranker.score("warm-up", ["warm-up"])
    library = Library(settings.store, embedder, k=settings.answer.retrieve, options=retrieval, reranker=reranker)
    with suppress(UnknownKnowledgeBase, EmptyKnowledgeBase):  # it may be made and filled later
        library.retriever(settings.store.knowledge_base)
    return library


@asynccontextmanager
async def _engine_or_reason(settings: Settings) -> AsyncIterator[EngineLike]:
    """The engine; when it or what is built on it does not start, one sentence on stderr, not uvicorn's traceback."""
    try:
        async with Engine.start(settings.engine) as engine:
            yield engine
    except (EngineStartFailed, ModelNotFound, NoReranker, EmbedderMismatch, asyncio.CancelledError) as error:
        print(f"groundwell serve: {str(error) or 'stopped before it had started'}", file=sys.stderr)
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        raise


def serve(settings: Settings) -> int:
    """Serve until SIGINT or SIGTERM, then end the streams with an error event, stop the engine and return 0.

    A signal before it answers breaks the start off. Raises SystemExit(3) when the engine does not start, SystemExit(1)
    when the address is taken.
    """
    import uvicorn

    app = create_app(settings, start_engine=lambda: _engine_or_reason(settings))

    class Server(uvicorn.Server):
        stopped = False

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            super().handle_exit(sig, frame)
            self.stopped = True
            starting: asyncio.Task[None] | None = getattr(app.state, "starting", None)
            if starting:
                starting.get_loop().call_soon_threadsafe(starting.cancel)
            service: Service | None = getattr(app.state, "service", None)
            if service:
                stopping = service.engine.stop_accepting()
                service.engine.loop.call_soon_threadsafe(asyncio.ensure_future, stopping)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                host, port = self.servers[0].sockets[0].getsockname()[:2]
                print(f"Groundwell answers at http://{host}:{port}/", flush=True)

    for sig in (signal.SIGINT, signal.SIGTERM):
        # uvicorn raises the signal again once it has stopped, for the handler that was there before: this one.
        signal.signal(sig, lambda *_: None)
    host, port = settings.server.host, settings.server.port
    grace = round(settings.server.grace_seconds)
    config = uvicorn.Config(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=grace)
    try:
        listening = config.bind_socket()  # before the engine starts: an address that is taken is said at once
    except SystemExit:
        print(f"groundwell serve: cannot listen on {host}:{port}; choose another with --port", file=sys.stderr)
        raise
    server = Server(config)
    try:
        server.run(sockets=[listening])
    except SystemExit:
        if not server.stopped:
            raise
        # vLLM may still be imported in its thread: Python cannot end in the midst of it, and waiting takes up to 10 s.
        os._exit(0)
    return 0 if server.started or server.stopped else 3
