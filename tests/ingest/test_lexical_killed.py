"""Killed at each step: the journal's transaction, the index's commit, and what the journal forgets after it."""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ingest.collection import lexical_path
from ingest.journal import Journal, StoredChunk, StoredDocument

STEPS = ("Connection.execute", "IndexWriter.", "Index.", "mkdir", "unlink", "rmdir")
"""The beginnings of the names of those built-in functions that change something on disk."""
AROUND = ("_transaction", "make", "write", "unlink", "mkdir", "rmtree", "_rmtree_safe_fd")
"""Who calls them; what else a transaction does is undone with it."""


def store(journal: Journal, source: str, *texts: str) -> None:
    chunks = [StoredChunk(text, text.encode(), text) for text in texts]
    journal.replace(StoredDocument(source, "hash", len(chunks)), chunks)


def write(journal: Journal) -> None:
    store(journal, "a.txt", "鸽子 pigeons", "pigeons read_sensor")
    journal.remove("b.txt")
    journal.index()
    store(journal, "c.txt", "年假 leave", "휴가 leave")
    store(journal, "a.txt", "鸽子 pigeons", "カタカナ pigeons")
    journal.index()


def rebuild(journal: Journal) -> None:
    journal.rebuild_lexical((id_, id_) for id_ in list(journal.ids()))


def empty(journal: Journal) -> None:
    journal.switch("other", empty=True)
    store(journal, "d.txt", "员工 staff")
    journal.index()


class Killed:
    """Counts steps, and ends the process before one of them."""

    def __init__(self, last: int) -> None:
        self.steps, self.last = 0, last

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        is_step = event == "c_call" and getattr(called, "__qualname__", "").startswith(STEPS)
        if is_step and frame.f_code.co_name in AROUND:
            if self.steps == self.last:
                os.kill(os.getpid(), signal.SIGKILL)
            self.steps += 1


def in_a_process(work: Callable[[Journal], None], path: Path, last: int) -> bool:
    """Do the work in a process that is killed before step `last`; whether it came to its end before."""
    if not (child := os.fork()):
        journal = Journal(path)
        sys.setprofile(Killed(last))
        work(journal)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status == 0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal whose index has seen everything."""
    (tmp_path / "before").mkdir()
    journal = Journal(tmp_path / "before" / "team.sqlite3")
    journal.switch("team", empty=True)
    store(journal, "a.txt", "鸽子 doves")
    store(journal, "b.txt", "病假 sick leave", "年假 annual leave")
    assert journal.index(check=True)
    journal.close()
    return tmp_path / "before" / "team.sqlite3"


def check(path: Path) -> None:
    """Both a reader that comes before the next writer and one after it find what there is, and nothing else."""
    reader, journal = Journal(path), Journal(path)
    chunks = set(journal.ids())
    words = "鸽子 doves pigeons read_sensor カタカナ leave 휴가 年假 病假 员工"
    assert {id_ for id_, _ in reader.search(words, 100)} <= chunks
    assert journal.index(check=True)
    for one in (reader, journal):
        assert {id_ for id_, _ in one.search(words, 100)} == chunks
        assert all(one.search(id_, 1)[0][0] == id_ for id_ in chunks)
        one.close()
    assert len(list(lexical_path(path).iterdir())) == 1


@pytest.mark.parametrize("work", [write, rebuild, empty])
def test_killed_at_any_step_the_next_writer_goes_on_without_a_new_index(path: Path, work) -> None:
    step, ended = 0, False
    while not ended:
        copy = shutil.copytree(path.parent, path.parent.with_name(f"killed at {step}")) / path.name
        ended = in_a_process(work, copy, step)
        check(copy)
        step += 1
    assert step > 10
