"""`make demo`'s program, and the README's Python, as they stand there."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slow.conftest import ROOT, environment


@pytest.mark.timeout(300)
def test_the_demo_finds_every_expected_source(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rag.demo", str(ROOT / "data")]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 expected sources found" in done.stdout
    assert done.stdout.count("first token after") == 4


BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_readmes_python_answers(home: Path, number: int) -> None:
    (home / "compose.py").write_text(BLOCKS[number], encoding="utf-8")
    command = [sys.executable, "compose.py"]
    done = subprocess.run(command, cwd=home, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = BLOCKS[number].count("print(") - BLOCKS[number].count("flush=True")
    assert len(done.stdout.strip().splitlines()) >= max(1, results), done.stdout


@pytest.mark.timeout(300)
def test_a_terminal_is_answered_where_no_service_runs(home: Path) -> None:
    def run(*arguments: str) -> dict[str, Any]:
        # Another user's service may run at the default address.
        free = environment() | {"GROUNDWELL_SERVER__PORT": "9"}
        command = [sys.executable, "-m", "rag", *arguments, "--json"]
        done = subprocess.run(command, cwd=home, env=free, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    question = "How long is the warranty of the Terrano 3 probe?"
    answered, found = run("ask", question), run("search", question)
    assert answered["answer"] and answered["citations"]
    assert {one["text"] for one in answered["sources"]} == {one["text"] for one in found["passages"]}


def test_a_folder_that_cannot_be_ingested_is_one_sentence_and_status_2(home: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        command = [sys.executable, "-m", "rag", "ingest", str(folder)]
        done = subprocess.run(command, cwd=home, env=environment(), capture_output=True, text=True)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1


def test_pip_complains_only_of_what_the_decisions_explain() -> None:
    explained = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    checked = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True).stdout
    complaints = re.findall(r"^(\S+) \S+ (?:requires|has requirement) ([\w.-]+)", checked, re.MULTILINE)
    unexplained = [pair for pair in complaints if not all(f"`{name}`" in explained for name in pair)]
    assert not unexplained
    assert complaints or "No broken requirements" in checked
