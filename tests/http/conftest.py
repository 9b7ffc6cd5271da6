"""The application on the scripted engine and the word-count embedder, over a real socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import openai
import pytest
import pytest_asyncio
from pytest_asyncio import is_async_test

from ingest.pipeline import ingest
from ingest.settings import IngestOptions
from ingest.store import KnowledgeBase
from rag.app import create_app
from rag.settings import Settings
from tests.fakes import ScriptedEngine, WordCountEmbedder
from tests.server import serving


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All on the loop on which the service runs."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


LEAVE = "# Leave\n\nFull-time employees receive 25 days of annual leave per year.\n\n# 病假\n\n员工每年有十八天病假。\n"
THREE = ["Leave is 25 days.", "Leave is 30 days from 2025 on.", "病假为七天。"]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the knowledge bases `default`, `three` (texts) and `空` (empty)."""
    folder, path = tmp_path_factory.mktemp("documents"), tmp_path_factory.mktemp("store")
    (folder / "leave.md").write_text(LEAVE, encoding="utf-8")
    knowledge_base = KnowledgeBase.open(path, "default", WordCountEmbedder(), create=True)
    ingest(folder, knowledge_base, IngestOptions(workers=0))
    knowledge_base.close()
    three = KnowledgeBase.open(path, "three", WordCountEmbedder(), create=True)
    three.add_texts(THREE, [{"year": 2024}, {"year": 2025}, {"部门": "人事部"}])
    three.close()
    KnowledgeBase.open(path, "空", WordCountEmbedder(), create=True).close()
    return path


@pytest.fixture(scope="session")
def service_engine() -> ScriptedEngine:
    """The one engine of the running service."""
    return ScriptedEngine()


@pytest.fixture
def engine(service_engine: ScriptedEngine) -> ScriptedEngine:
    """What a test scripts before it asks."""
    service_engine.reset("Full-time employees receive 25 days of annual leave.")
    return service_engine


@pytest.fixture(scope="session")
def embedder() -> WordCountEmbedder:
    """What a test slows down."""
    return WordCountEmbedder()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def address(store: Path, service_engine: ScriptedEngine, embedder: WordCountEmbedder) -> AsyncIterator[str]:
    """The running service."""

    @asynccontextmanager
    async def start_engine() -> AsyncIterator[ScriptedEngine]:
        assert service_engine.loop
        yield service_engine

    settings = Settings(store={"path": store})
    async with serving(create_app(settings, start_engine=start_engine, embedder=embedder)) as address:
        yield address


@pytest_asyncio.fixture(loop_scope="session")
async def client(address: str, engine: ScriptedEngine) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the service."""
    async with httpx.AsyncClient(base_url=address, trust_env=False, verify=False, timeout=30) as client:
        yield client


@pytest.fixture
def official(client: httpx.AsyncClient) -> openai.AsyncOpenAI:
    """OpenAI's own client of it."""
    return openai.AsyncOpenAI(api_key="none", base_url=f"{client.base_url}/v1", max_retries=0, http_client=client)
