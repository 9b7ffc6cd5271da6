"""What every test of the ingest starts from."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from ingest import __main__ as command
from ingest import workers
from ingest.store import KnowledgeBase
from tests.fakes import WordCountEmbedder
from tests.forking import Forker

settings.register_profile("groundwell", deadline=None)  # a timing is a benchmark, never a test
settings.load_profile("groundwell")


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    with Forker() as forker:
        yield forker


@pytest.fixture(autouse=True)
def _forked_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, forker: Forker) -> None:
    """Worker processes that need not import everything again; test_workers.py has the product's own."""
    if request.path.name == "test_workers.py":
        return

    def start(worker: Any) -> None:
        worker.process, worker.connection = forker.fork()

    monkeypatch.setattr(workers._Worker, "start", start)


@pytest.fixture
def embedder() -> WordCountEmbedder:
    return WordCountEmbedder()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def opened(store: Path) -> Iterator[Callable[..., KnowledgeBase]]:
    """Opens knowledge bases, and closes them after the test."""
    open_ones = []

    def open_one(embedder: WordCountEmbedder, name: str = "team", **options: bool) -> KnowledgeBase:
        open_ones.append(KnowledgeBase.open(store, name, embedder, **{"create": True} | options))
        return open_ones[-1]

    yield open_one
    for one in open_ones:
        one.close()


@pytest.fixture
def knowledge_base(opened: Callable[..., KnowledgeBase], embedder: WordCountEmbedder) -> KnowledgeBase:
    return opened(embedder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "leave.md").write_text("# Leave\n\nFull-time employees get 25 days of annual leave.\n", encoding="utf-8")
    (folder / "travel.txt").write_text("Travel is approved by the line manager.\n", encoding="utf-8")
    (folder / "guide.txt").write_text("员工每年有十二天年假。病假为七天。\n", encoding="utf-8")
    return folder


@pytest.fixture
def unchanged_environment(monkeypatch) -> None:
    for name in ("ANONYMIZED_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "")  # so that it is put back even where it was not there
        monkeypatch.delenv(name)


@pytest.fixture
def run(monkeypatch, tmp_path, capsys, unchanged_environment):
    """Runs the command in this process; gives its status, its output and its errors."""
    monkeypatch.setattr("llm.embeddings.Embedder", lambda options: WordCountEmbedder(options.model))
    monkeypatch.setenv("GROUNDWELL_STORE__PATH", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ingest", *map(str, arguments)])
        status = command.main()
        return status, *capsys.readouterr()

    return run_command
