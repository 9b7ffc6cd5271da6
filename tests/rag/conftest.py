"""What every test of the answering side starts from: a knowledge base in two languages, scripted engines."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from langchain_core.documents import Document

from ingest.pipeline import ingest
from ingest.settings import IngestOptions
from ingest.store import KnowledgeBase
from rag.retriever import HybridRetriever
from tests.fakes import ScriptedEngine, WordCountEmbedder, byte_tokenizer
from tests.ingest.pdf import pdf

settings.register_profile("groundwell", deadline=None)  # a timing is a benchmark, never a test
settings.load_profile("groundwell")

DOCUMENTS = {
    "leave.md": "# Leave\n\nFull-time employees get 25 days of annual leave. Carry-over ends in March.\n",
    "travel.md": "# Travel\n\nTravel is approved by the line manager, Dr Adeyemi.\n",
    "limits.md": "# Limits\n\nThe limit of the line manager is 3,000 euros a journey.\n",
    "canteen.txt": "The canteen opens at noon.\n",
    "annual-zh.txt": "员工每年有十二天年假。\n",
    "sick-zh.txt": "病假为七天，须交医院证明。\n",
    "contractors-zh.txt": "外包人员没有带薪的休假。\n",
    "remote-zh.txt": "远程办公每周最多三天。\n",
}


class Gate(asyncio.Event):
    """An event that tells when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()

    async def wait(self) -> Any:
        self.reached.set()
        return await super().wait()


class BlockedEmbedder(WordCountEmbedder):
    """Blocks the thread that embeds a question until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.released = threading.Event(), threading.Event()

    def embed_query(self, text: str) -> list[float]:
        self.entered.set()
        assert self.released.wait(60)
        return super().embed_query(text)


def passage(text: str, source: str = "guide.txt", **metadata: Any) -> Document:
    """A passage as the retriever gives it."""
    return Document(text, metadata={"source": source, "start": 0, "end": len(text), "line": 1} | metadata)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return byte_tokenizer()


@pytest.fixture
def scripted(tokenizer: Any) -> Callable[..., ScriptedEngine]:
    """Makes scripted engines that share one tokenizer."""

    def make(*replies: str | Exception, **options: Any) -> ScriptedEngine:
        return ScriptedEngine(*replies, tokenizer=tokenizer, **options)

    return make


@pytest.fixture
def embedder() -> WordCountEmbedder:
    return WordCountEmbedder()


@pytest.fixture
def blocked() -> Iterator[BlockedEmbedder]:
    embedder = BlockedEmbedder()
    yield embedder
    embedder.released.set()


@pytest.fixture(scope="session")
def knowledge_base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    """The documents above, ingested once; nothing writes to it."""
    folder = tmp_path_factory.mktemp("documents")
    for name, text in DOCUMENTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "handbook.pdf").write_bytes(pdf("Parking permits are free", "Bicycles go to the cellar"))
    store = tmp_path_factory.mktemp("store")
    knowledge_base = KnowledgeBase.open(store, "team", WordCountEmbedder(), create=True)
    ingest(folder, knowledge_base, IngestOptions(workers=0))
    yield knowledge_base
    knowledge_base.close()


@pytest.fixture
def retriever(knowledge_base: KnowledgeBase, embedder: WordCountEmbedder) -> HybridRetriever:
    return HybridRetriever(knowledge_base=knowledge_base, embedder=embedder, k=3)
