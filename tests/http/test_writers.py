"""A service answers from a knowledge base that other processes write to."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from ingest.knowledge_bases import EmbedderMismatch
from ingest.pipeline import ingest
from ingest.settings import IngestOptions
from ingest.store import KnowledgeBase
from llm.engine import Engine
from rag.app import _engine_or_reason, create_app
from rag.settings import Settings
from tests.fakes import ScriptedEngine, WordCountEmbedder
from tests.server import serving

ROOT = Path(__file__).parents[2]
INGEST = """
import sys
import llm.embeddings
from tests.fakes import WordCountEmbedder
llm.embeddings.Embedder = lambda options: WordCountEmbedder()
from ingest.__main__ import main
sys.exit(main())
"""
ASK = "/v1/knowledge-bases/default/ask"


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    documents = tmp_path / "documents"
    documents.mkdir()
    for number in range(20):
        (documents / f"{number}.txt").write_text(
            f"Rule {number} is about the canteen. 规定 {number}。", encoding="utf-8"
        )
    return documents


async def ingesting(store: Path, documents: Path) -> asyncio.subprocess.Process:
    """`python -m ingest` with the tests' embedder, in another process."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "GROUNDWELL_STORE__PATH": str(store)}
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    return await asyncio.create_subprocess_exec(sys.executable, "-c", INGEST, str(documents), env=environment, **pipes)


def application(store: Path, embedder: WordCountEmbedder) -> FastAPI:
    engine = ScriptedEngine()

    @asynccontextmanager
    async def start_engine() -> AsyncIterator[ScriptedEngine]:
        assert engine.loop
        yield engine

    return create_app(Settings(store={"path": store}), start_engine=start_engine, embedder=embedder)


@asynccontextmanager
async def service(store: Path, embedder: WordCountEmbedder) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        serving(application(store, embedder)) as address,
        httpx.AsyncClient(base_url=address, trust_env=False, verify=False, timeout=60) as client,
    ):
        yield client


async def test_what_another_process_ingests_is_answered_from_within_five_seconds(tmp_path, documents) -> None:
    store, embedder = tmp_path / "store", WordCountEmbedder()
    knowledge_base = KnowledgeBase.open(store, "default", embedder, create=True)
    ingest(documents, knowledge_base, IngestOptions(workers=0))
    knowledge_base.close()
    async with service(store, embedder) as client:

        async def first_source() -> str:
            body = {"question": "密码 of the pigeons?", "stream": False}
            return (await client.post(ASK, json=body)).json()["sources"][0]["file"]

        assert await first_source() != "新.txt"
        (documents / "新.txt").write_text("The pigeons know it: 密码 of the pigeons is 47913.", encoding="utf-8")
        writer = await ingesting(store, documents)
        asked = 0
        while writer.returncode is None:  # it goes on answering
            assert await first_source()
            asked += 1
            await asyncio.sleep(0)
        assert (writer.returncode, asked > 0) == (0, True)
        async with asyncio.timeout(5):
            while await first_source() != "新.txt":  # noqa: ASYNC110  (what is waited for has no event)
                await asyncio.sleep(0.05)


async def test_of_ingests_at_once_one_writes_and_the_others_are_refused_or_find_nothing_to_do(tmp_path, documents):
    store = tmp_path / "store"
    ended = []
    for writer in [await ingesting(store, documents) for _ in range(3)]:
        output, errors = await writer.communicate()
        ended.append((writer.returncode, output.decode(), errors.decode()))
    assert {status for status, _, _ in ended} <= {0, 2}, ended
    assert sum("20 added" in output for _, output, _ in ended) == 1, ended
    for status, _, errors in ended:
        assert status == 0 or "knowledge base 'default' is being written by " in errors, ended
    knowledge_base = KnowledgeBase.open(store, "default", embedder := WordCountEmbedder())
    assert ingest(documents, knowledge_base, IngestOptions(workers=0)).unchanged == 20
    assert (knowledge_base.count(), knowledge_base.ask(lambda collection: collection.count())) == ((20, 20), 20)
    assert len(knowledge_base.dense(embedder.embed_query("canteen"), 99)) == 20
    knowledge_base.close()


async def test_a_service_with_another_embedder_than_its_knowledge_base_does_not_start(tmp_path) -> None:
    KnowledgeBase.open(tmp_path, "default", WordCountEmbedder("bge-small", dimension=384), create=True).close()
    for dimension in (384, 768):
        with pytest.raises(EmbedderMismatch, match=r"bge-small.*bge-base.*--rebuild"):
            async with started(tmp_path, WordCountEmbedder("bge-base", dimension=dimension)):
                pass


async def test_its_user_is_told_so_in_one_sentence(monkeypatch, capsys) -> None:
    @asynccontextmanager
    async def start(options: object) -> AsyncIterator[ScriptedEngine]:
        yield ScriptedEngine()

    monkeypatch.setattr(Engine, "start", staticmethod(start))
    logger = logging.getLogger("uvicorn.error")
    monkeypatch.setattr(logger, "level", logger.level)  # so that it is put back
    with pytest.raises(EmbedderMismatch):
        async with _engine_or_reason(Settings()):
            raise EmbedderMismatch("知识库", {"model": "bge-small"}, {"model": "bge-base"})
    said = capsys.readouterr().err
    assert said.startswith("groundwell serve: knowledge base '知识库' was made with bge-small")
    assert said.count("\n") == 1


@asynccontextmanager
async def started(store: Path, embedder: WordCountEmbedder) -> AsyncIterator[None]:
    """The application's lifespan without a server, which would only log what is raised."""
    app = application(store, embedder)
    async with app.router.lifespan_context(app):
        yield
