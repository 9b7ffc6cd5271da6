"""The application on the scripted engine and the word-count embedder, over a real socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from ingest.pipeline import ingest
from ingest.store import KnowledgeBase
from rag.app import create_app
from rag.settings import Settings
from tests.fakes import ScriptedEngine, WordCountEmbedder
from tests.server import serving

LEAVE = "# Leave\n\nFull-time employees receive 25 days of annual leave per year.\n\n# 病假\n\n员工每年有十八天病假。\n"


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the knowledge bases `default` and `空` (empty)."""
    folder, path = tmp_path_factory.mktemp("documents"), tmp_path_factory.mktemp("store")
    (folder / "leave.md").write_text(LEAVE, encoding="utf-8")
    knowledge_base = KnowledgeBase.open(path, "default", WordCountEmbedder(), create=True)
    ingest(folder, knowledge_base)
    knowledge_base.close()
    KnowledgeBase.open(path, "空", WordCountEmbedder(), create=True).close()
    return path


@pytest.fixture
def engine() -> ScriptedEngine:
    """What a test scripts before it asks."""
    return ScriptedEngine("Full-time employees receive 25 days of annual leave.")


@pytest.fixture
def embedder() -> WordCountEmbedder:
    """What a test slows down."""
    return WordCountEmbedder()


@pytest.fixture
def settings(store: Path) -> Settings:
    """The settings of the service."""
    return Settings(store={"path": store})


@pytest.fixture
async def client(
    settings: Settings, engine: ScriptedEngine, embedder: WordCountEmbedder
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the running service."""

    @asynccontextmanager
    async def start_engine() -> AsyncIterator[ScriptedEngine]:
        assert engine.loop
        yield engine

    app = create_app(settings, start_engine=start_engine, embedder=embedder)
    async with serving(app) as address, httpx.AsyncClient(base_url=address, trust_env=False) as client:
        yield client
