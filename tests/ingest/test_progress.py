import io
import sys
import threading

import pytest

from ingest import progress
from ingest.report import Progress

HALF_WAY = Progress(4, total=10, chunks=120, read=5, found=200, embedded=200)


class Stream(io.StringIO):
    """Standard error, as a terminal or not, which tells when something wanted has been written to it."""

    def __init__(self, wanted: str, *, terminal: bool) -> None:
        super().__init__()
        self.wanted, self.terminal, self.there = wanted, terminal, threading.Event()

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.wanted in self.getvalue():
            self.there.set()
        return written


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.02)
    monkeypatch.setattr(progress, "BAR_SECONDS", 0.02)


def test_a_line_says_what_is_done_how_fast_and_what_is_left() -> None:
    assert progress.line(HALF_WAY, 60) == "5 of 10 files read, 200 chunks embedded, 3 chunks/s, 0:01:00 left"


def test_nothing_is_said_of_the_time_left_before_something_is_embedded() -> None:
    begun = Progress(0, total=7, chunks=0, read=1, found=512)
    assert progress.line(begun, 16) == "1 of 7 files read, 0 chunks embedded"
    assert progress.line(Progress(0, total=0, chunks=0), 16) == "looking for new and changed files"


def test_of_one_large_file_the_share_is_what_is_embedded_of_it() -> None:
    assert Progress(0, total=1, chunks=0, read=1, found=1000, embedded=250).share == 0.25
    assert Progress(3, total=4, chunks=0, read=3).share == 0.75  # nothing in them was new


@pytest.mark.parametrize("wanted", ["looking for new and changed files\n" * 2, " left\n5 of 10 files"])
def test_a_log_gets_one_line_after_another_whatever_the_run_does(monkeypatch, wanted: str) -> None:
    log = Stream(wanted, terminal=False)
    monkeypatch.setattr(sys, "stderr", log)
    with progress.shown() as tell:
        if "left" in wanted:
            tell(HALF_WAY)
        assert log.there.wait(30)


def test_a_terminal_has_a_bar_at_once_which_moves_while_nothing_is_stored(monkeypatch) -> None:
    terminal = Stream(" 50%|", terminal=True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.shown() as tell:
        assert "  0%|" in terminal.getvalue()
        tell(HALF_WAY)
        assert terminal.there.wait(30)
        tell(Progress(4, total=10, chunks=120, read=10, found=200, embedded=200))
    assert "100%|" in terminal.getvalue()
    assert "5 of 10 files read, 200 chunks embedded" in terminal.getvalue()


def test_no_thread_is_left_when_the_run_ends_or_fails(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stderr", Stream("", terminal=False))
    with pytest.raises(KeyboardInterrupt), progress.shown():
        assert "progress" in [thread.name for thread in threading.enumerate()]
        raise KeyboardInterrupt
    assert "progress" not in [thread.name for thread in threading.enumerate()]


def test_a_log_that_nobody_reads_any_more_ends_nothing(monkeypatch) -> None:
    class Closed(Stream):
        def write(self, text: str) -> int:
            self.there.set()
            raise BrokenPipeError

    log = Closed("", terminal=False)
    monkeypatch.setattr(sys, "stderr", log)
    with progress.shown() as tell:
        assert log.there.wait(30)
        tell(HALF_WAY)
