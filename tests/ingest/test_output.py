"""What the commands print, as they are run by scripts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingest.output import printable
from ingest.pipeline import ingest
from ingest.report import Report, first_of

ROOT = Path(__file__).parents[2]
MAIN = """
import sys
import llm.embeddings
from tests.fakes import WordCountEmbedder
llm.embeddings.Embedder = lambda options: WordCountEmbedder()
from rag.__main__ import main
sys.exit(main())
"""
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def groundwell(folder: Path, command: str, environment: dict[str, str] = {}) -> "subprocess.CompletedProcess[bytes]":  # noqa: B006
    """A command line for bash, in which `$G` is `groundwell`."""
    return subprocess.run(
        ["bash", "-c", 'set -o pipefail; G() { "$PYTHON" -c "$MAIN" "$@"; }; ' + command],
        env=os.environ
        | {"PYTHON": sys.executable, "MAIN": MAIN, "PYTHONPATH": str(ROOT), "GROUNDWELL_STORE__PATH": "store"}
        | environment,
        cwd=folder,
        capture_output=True,
        timeout=100,
        check=False,
    )


@pytest.fixture
def strange(folder: Path) -> Path:
    """A folder of documents, some with names that could do harm."""
    (folder / "ümlaut.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    (folder / "a\nfailed: 假.txt").write_text("text", encoding="utf-8")
    (folder / "\x1b[2J\x9b31m\u202e.txt").write_text("text", encoding="utf-8")
    (folder / "全　角\x7f.mp3").write_bytes(b"")
    (folder / os.fsdecode(b"\xff.txt")).write_text("text", encoding="utf-8")
    return folder


@pytest.mark.parametrize("locale", [{}, ASCII], ids=["utf-8", "ascii"])
def test_json_is_valid_in_every_locale_whatever_the_names(strange: Path, locale: dict[str, str]) -> None:
    process = groundwell(strange.parent, "G ingest documents --knowledge-base 知识 --json", locale)
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    expected = ["a\nfailed: 假.txt", "\x1b[2J\x9b31m\u202e.txt", "guide.txt", "leave.md", "travel.txt", "ümlaut.csv"]
    assert report["added"] == sorted([*expected, "\\xff.txt"])
    assert report["skipped"] == ["全　角\x7f.mp3"]
    assert report["knowledge_base"]["name"] == "知识"
    listed = groundwell(strange.parent, "G knowledge-bases list --json", locale)
    assert json.loads(listed.stdout)[0]["name"] == "知识"


def test_a_name_cannot_forge_a_line_nor_reach_the_terminal(strange: Path) -> None:
    (strange / "a\nfailed: 假.txt").write_bytes(b"")
    process = groundwell(
        strange.parent,
        "G ingest documents --knowledge-base $'x\\n1 added'; G documents list --knowledge-base $'x\\n1 added'",
    )
    lines = process.stdout.decode().split("\n")
    assert lines[:4] == [
        "6 added, 0 unchanged, 0 removed, 1 failed, 1 skipped",
        "failed: a\\nfailed: 假.txt: is empty",
        "skipped, format not supported: 全　角\\x7f.mp3",
        "knowledge base x\\n1 added: 6 documents, 6 chunks",
    ]
    assert "      1  \\x1b[2J\\x9b31m\\u202e.txt" in lines
    assert not set("\x1b\x9b\u202e\x7f") & set(process.stdout.decode())


@pytest.mark.parametrize(
    "command",
    ["G ingest documents", "G ingest documents --json", "G documents list", "G documents show leave.md", "G --help"],
)
def test_a_reader_that_leaves_is_not_missed_and_a_full_disk_is_one_line(
    folder: Path, opened, embedder, command: str
) -> None:
    ingest(folder, opened(embedder, "default"))
    left = groundwell(folder.parent, f"{command} | true")
    assert (left.returncode, left.stderr) == (0, b"")
    full = groundwell(folder.parent, f"{command} > /dev/full")
    assert full.stderr.decode().endswith(": the output cannot be written: No space left on device\n")
    assert (full.stderr.count(b"\n"), full.returncode) == (1, 0 if "help" in command else 1)
    for elsewhere in (">&-", "2>/dev/full", "2>&-"):
        assert groundwell(folder.parent, f"{command} {elsewhere}").returncode == 0


def test_a_full_standard_error_ends_no_run(folder: Path) -> None:
    process = groundwell(folder.parent, "G ingest nowhere --json 2>/dev/full")
    assert (process.returncode, json.loads(process.stdout)["exit_status"]) == (2, 2)


def test_printable_keeps_what_names_are_made_of() -> None:
    kept = "知识　库 naïve\tcafe\u0301 नि\u200dम 👩‍💻 שלום\u200f"
    assert printable(kept) == kept
    assert printable("\0\r\n\x85\u2028\u2066\ud800") == "\\x00\\r\\n\\x85\\u2028\\u2066\\ud800"


def test_names_on_a_line_are_few_and_short() -> None:
    assert first_of(["a\n", "字" * 200]) == f"a\\n, {'字' * 99}…"
    assert first_of([str(number) for number in range(99)]).endswith("8, 9, …")
    assert Report(failed=(("a\nb", "its\nreason"),)).summary().split("\n")[1:] == ["failed: a\\nb: its\\nreason"]
