import io
import os
import sys
import threading
from pathlib import Path

from ingest import progress, writer
from ingest.pipeline import ingest
from ingest.report import Progress
from ingest.settings import IngestOptions
from ingest.store import KnowledgeBase


class Terminal(io.StringIO):
    awaited: threading.Event | None = None

    def write(self, text: str) -> int:
        if self.awaited:
            self.awaited.set()
        return super().write(text)

    def isatty(self) -> bool:
        return True


def test_a_log_line_says_what_was_told_last_however_long_ago(capsys) -> None:
    seconds = iter([0.0, 10.0, 20.0, 30.0])
    log = progress.Log(lambda: next(seconds))
    log.tell()
    log.take(Progress(10, 1000, 20, 30))
    log.take(Progress(100, 1000, 200, 130))
    log.tell()
    log.tell()
    assert capsys.readouterr().err == (
        "comparing the files with what is in\n"
        "100 of 1000 files, 130 read, 200 chunks, 20 chunks/s, 0:01:30 left\n"
        "100 of 1000 files, 130 read, 200 chunks, 10 chunks/s, 0:03:00 left\n"
    )


def test_nothing_is_said_of_the_time_left_before_a_file_is_done() -> None:
    assert progress.line(Progress(0, 7, 512, 3), 16) == "0 of 7 files, 3 read, 512 chunks, 32 chunks/s"


def test_a_terminal_gets_a_bar_of_files_with_the_rate_of_chunks(monkeypatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.shown() as show:
        show(Progress(0, 4, 0))
        assert "| 0/4 [" in terminal.getvalue()
        show(Progress(3, 4, 100, 4))
    assert "| 3/4 [" in terminal.getvalue()
    assert "4 read, " in terminal.getvalue() and "chunks/s]" in terminal.getvalue()


def test_a_bar_and_a_log_go_on_while_nothing_is_told(monkeypatch, capsys) -> None:
    monkeypatch.setattr(progress, "BAR_SECONDS", 0.001)
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.001)
    told = threading.Event()
    monkeypatch.setattr(progress, "warn", lambda line: told.set() if line.startswith("3 of 4 files") else None)
    with progress.shown() as show:
        show(Progress(3, 4, 100))
        assert told.wait(30)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.shown() as show:
        show(Progress(3, 4, 100))
        terminal.awaited = threading.Event()
        assert terminal.awaited.wait(30)


def test_what_is_no_terminal_gets_no_bar(capsys) -> None:
    with progress.shown() as show:
        show(Progress(3, 4, 100))
    assert capsys.readouterr().err == ""


def test_a_run_tells_the_total_first_and_then_moves_within_a_batch(
    folder: Path, knowledge_base: KnowledgeBase, monkeypatch
) -> None:
    monkeypatch.setattr(writer, "AT_ONCE", 2)
    for number in range(5):
        (folder / f"{number}.txt").write_text(f"Text number {number}.", encoding="utf-8")
    told: list[Progress] = []
    ingest(folder, knowledge_base, IngestOptions(workers=0), told.append)
    assert told[0] == Progress(0, 8, 0, 0)
    assert [one.read for one in told[1:9]] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [(one.files, one.chunks) for one in told[9:]] == [(2, 2), (4, 4), (6, 6), (8, 8), (8, 8)]
    told.clear()
    ingest(folder, knowledge_base, IngestOptions(workers=0), told.append)
    assert told == []


def test_a_terminal_that_tells_no_width_gets_a_bar_too(monkeypatch) -> None:
    ours, theirs = os.openpty()  # its size is 0 by 0
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress.shown() as show:
            show(Progress(3, 4, 100, 4))
        said = b""
        while b"| 3/4 [" not in said:
            said += os.read(ours, 10_000)
    os.close(ours)
