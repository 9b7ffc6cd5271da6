"""`groundwell ingest --watch` as a user runs it, ended with Ctrl-C."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ingest.test_command import MAIN
from tests.slow.conftest import ROOT, environment


@pytest.mark.timeout(120)
def test_a_change_is_in_soon_after_it_and_ctrl_c_ends_the_watch_without_a_word(tmp_path: Path) -> None:
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "a.txt").write_text("The first.", encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, str(documents), "--watch"],
        cwd=ROOT,
        env=environment() | {"GROUNDWELL_STORE__PATH": str(tmp_path / "store")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "1 added, 0 unchanged, 0 removed\n"
    process.stdout.readline()
    (documents / "新.txt").write_text("新的文件", encoding="utf-8")
    assert process.stdout.readline() == "1 added, 1 unchanged, 0 removed\n"
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
