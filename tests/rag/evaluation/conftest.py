"""A knowledge base in two languages on disk, questions for it, and the command on scripted models."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ingest.pipeline import ingest
from ingest.settings import IngestOptions
from ingest.store import KnowledgeBase
from rag.__main__ import main
from tests.fakes import ScriptedEngine, WordCountEmbedder
from tests.rag.conftest import DOCUMENTS

LEAVE = "Full-time employees get 25 days of annual leave."
QUESTIONS = [
    {
        "id": "leave",
        "question": "How many days of annual leave do full-time employees get?",
        "language": "en",
        "answerable": True,
        "pattern": r"\b25\b",
        "file": "leave.md",
        "quote": LEAVE,
    },
    {
        "id": "年假",
        "question": "员工每年有几天年假？",
        "language": "zh",
        "answer": "十二天年假",
        "file": "annual-zh.txt",
        "quote": "员工每年有十二天年假。",
    },
    {
        "id": "approval",
        "question": "And who approves travel?",
        "language": "en",
        "answer": "Dr Adeyemi",
        "file": "travel.md",
        "history": [
            {"role": "user", "content": "How many days of annual leave are there?"},
            {"role": "assistant", "content": "25 days."},
        ],
    },
    {"id": "dog", "question": "May dogs swim in the pool?", "language": "en", "answerable": False},
]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the documents as `default` and again as `另一个`."""
    folder, store = tmp_path_factory.mktemp("documents"), tmp_path_factory.mktemp("store")
    for name, text in DOCUMENTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name in ("default", "另一个"):
        knowledge_base = KnowledgeBase.open(store, name, WordCountEmbedder(), create=True)
        ingest(folder, knowledge_base, IngestOptions(workers=0))
        knowledge_base.close()
    KnowledgeBase.open(store, "空", WordCountEmbedder(), create=True).close()
    return store


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of questions; a line is an object, or text or bytes as they are."""

    def write(*lines: dict[str, Any] | str | bytes, name: str = "questions.jsonl") -> Path:
        texts = [json.dumps(one, ensure_ascii=False) if isinstance(one, dict) else one for one in lines]
        file = tmp_path / name
        file.write_bytes(b"\n".join(one.encode() if isinstance(one, str) else one for one in texts))
        return file

    return write


@pytest.fixture
def engine(tokenizer: Any) -> ScriptedEngine:
    """What a test scripts; it says what the documents say of leave."""
    return ScriptedEngine(LEAVE, tokenizer=tokenizer)


@pytest.fixture
def run(
    base: Path, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture
) -> Callable[..., tuple[int, str, str]]:
    """Runs `groundwell eval`; gives its exit status, what it printed, and its errors."""

    @asynccontextmanager
    async def started(options: Any) -> AsyncIterator[ScriptedEngine]:
        engine.loop = asyncio.get_running_loop()  # each run has one of its own
        yield engine

    monkeypatch.setattr("llm.embeddings.Embedder", lambda options: WordCountEmbedder())
    monkeypatch.setattr("llm.engine.Engine.start", started)
    monkeypatch.setenv("GROUNDWELL_STORE__PATH", str(base))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        try:
            status = main(["eval", *map(str, arguments)])
        except SystemExit as end:
            status = int(end.code or 0)
        return status, *capfd.readouterr()

    return run
