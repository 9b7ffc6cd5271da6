"""`groundwell doctor`: each thing that is wrong is named with what mends it."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from ingest.store import KnowledgeBase
from rag.__main__ import main
from rag.settings import Settings
from rag.terminal.doctor import Finding, examine
from tests.fakes import WordCountEmbedder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GROUNDWELL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def found(what: str, **settings: Any) -> list[Finding]:
    return [one for one in examine(Settings(**settings)) if one.what == what]


def test_a_machine_that_has_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["what"] for one in told} >= {"Python", "torch", "vLLM", "memory", "engine.model", "store", "port"}
    assert not [one for one in told if one["status"] == "bad"]
    assert all(one["mend"] for one in told if one["status"] != "good")


@pytest.mark.parametrize("name", ["./nowhere", "nobody/nothing"])
def test_a_model_that_is_not_there_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (one,) = found("embedder.model", embedder={"model": name})
    assert one.status == "bad" and name in one.says + one.mend
    assert one.mend


def test_too_little_memory_is_told_with_both_numbers() -> None:
    (one,) = found("memory", engine={"kv_cache_gib": 10_000})
    assert one.status == "bad"
    assert "GiB are free" in one.says and "10000" in one.says.replace(",", "")


def test_a_port_that_is_taken_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (one,) = found("port", server={"port": taken.getsockname()[1]})
    assert one.status == "warning" and "--port" in one.mend


def test_a_knowledge_base_of_another_embedder_is_told(tmp_path: Path) -> None:
    KnowledgeBase.open(tmp_path / "store", "手册", WordCountEmbedder(), create=True).close()
    told = found("store", store={"path": tmp_path / "store"})
    assert [one.status for one in told] == ["bad", "warning"]
    assert "手册" in told[0].says and "word-count" in told[0].mend
    assert "手册" in told[1].mend


def test_a_check_that_fails_itself_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("no /proc")

    monkeypatch.setattr("psutil.virtual_memory", broken)
    told = list(examine(Settings()))
    assert [(one.status, one.says) for one in told if one.what == "memory"] == [
        ("bad", "cannot be examined: OSError: no /proc")
    ]
    assert any(one.what == "port" for one in told)
