"""One real engine for the session, on a loop of its own, with the service over a real socket beside it."""

import os

# Read when torch and vLLM are imported, so before anything else.
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from ingest.pipeline import ingest
from ingest.store import KnowledgeBase
from llm.embeddings import Embedder
from llm.engine import Engine
from llm.options import EngineOptions
from rag.app import create_app
from rag.settings import Settings
from tests.server import serving

DATA = Path(__file__).parents[2] / "data"
WINDOW = 2048


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.model)
            item.add_marker(pytest.mark.filterwarnings("default"))  # vLLM and torch warn of each other


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Started before the embedder: a fork after OpenMP has run is not safe."""
    options = EngineOptions(max_model_len=WINDOW, kv_cache_gib=0.5, fast_start=True)
    with Engine.start_in_thread(options) as engine:
        yield engine


@pytest.fixture(scope="session")
def embedder(engine: Engine) -> Embedder:
    """The real embedder."""
    return Embedder()


@pytest.fixture(scope="session")
def store(embedder: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample documents, ingested."""
    store = tmp_path_factory.mktemp("store")
    knowledge_base = KnowledgeBase.open(store, "default", embedder, create=True)
    report = ingest(DATA / "sample", knowledge_base)
    assert report.exit_status == 0, report.summary()
    knowledge_base.close()
    return store


@pytest.fixture(scope="session")
def address(engine: Engine, embedder: Embedder, store: Path) -> Iterator[str]:
    """The service on the engine's own loop, as in production."""
    import asyncio

    @asynccontextmanager
    async def start_engine() -> AsyncIterator[Engine]:
        yield engine

    settings = Settings(store={"path": store}, answer={"follow_up": "rewrite"})
    running = serving(create_app(settings, start_engine=start_engine, embedder=embedder))
    call = lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, engine.loop).result()  # noqa: E731
    yield call(running.__aenter__())
    call(running.__aexit__(None, None, None))


@pytest.fixture
def client(address: str) -> Iterator[httpx.Client]:
    """A client of the service."""
    with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
        yield client
