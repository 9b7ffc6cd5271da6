"""`groundwell ingest` and its `--watch` as a user runs them, ended with Ctrl-C."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.ingest.test_command import MAIN
from tests.slow.conftest import ROOT, environment


def started(folder: Path, *options: str, embedder: str = "WordCountEmbedder") -> "subprocess.Popen[str]":
    """The command, in a process group of its own as in a terminal."""
    code = MAIN.replace(
        "tests.fakes import WordCountEmbedder", f"tests.ingest.troublesome import {embedder} as WordCountEmbedder"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder / "documents"), *options],
        cwd=ROOT,
        env=environment() | {"GROUNDWELL_STORE__PATH": str(folder / "store")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    (tmp_path / "documents").mkdir()
    return tmp_path / "documents"


@pytest.mark.timeout(120)
def test_ctrl_c_ends_a_run_with_one_sentence_and_its_workers_though_a_file_never_ends(
    documents: Path, tmp_path: Path
) -> None:
    (documents / "a.txt").write_text("it hangs", encoding="utf-8")
    process = started(tmp_path, embedder="TroublesomeEmbedder")
    while not (workers := psutil.Process(process.pid).children()):
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    said = errors.splitlines()[-1]  # lines of how far it is may be before it
    assert (process.returncode, said) == (130, "groundwell ingest: interrupted; the next run finishes it")
    assert psutil.wait_procs(workers, timeout=10)[1] == []


@pytest.mark.timeout(120)
def test_a_change_is_in_soon_after_it_and_ctrl_c_ends_the_watch_without_a_word(documents: Path, tmp_path: Path) -> None:
    (documents / "a.txt").write_text("The first.", encoding="utf-8")
    process = started(tmp_path, "--watch")
    assert process.stdout
    assert process.stdout.readline() == "1 added, 0 unchanged, 0 removed\n"
    process.stdout.readline()
    (documents / "新.txt").write_text("新的文件", encoding="utf-8")
    assert process.stdout.readline() == "1 added, 1 unchanged, 0 removed\n"
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
