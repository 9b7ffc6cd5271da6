import io
import sys

from ingest import progress
from ingest.report import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_every_ten_seconds_and_none_before(capsys) -> None:
    seconds = iter([0.0, 4.0, 10.0, 14.0, 21.0])
    show = progress.log_lines(lambda: next(seconds))
    for files in (10, 100, 150, 200):
        show(Progress(files, 1000, files * 2))
    assert capsys.readouterr().err == (
        "100 of 1000 files, 200 chunks, 20 chunks/s, 0:01:30 left\n"
        "200 of 1000 files, 400 chunks, 19 chunks/s, 0:01:24 left\n"
    )


def test_nothing_is_said_of_the_time_left_before_a_file_is_done() -> None:
    assert progress.line(Progress(0, 7, 512), 16) == "0 of 7 files, 512 chunks, 32 chunks/s"


def test_a_terminal_gets_a_bar_of_files_with_the_rate_of_chunks(monkeypatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.shown() as show:
        show(Progress(3, 4, 100))
    assert "| 3/4 [" in terminal.getvalue()
    assert "chunks/s]" in terminal.getvalue()


def test_what_is_no_terminal_gets_no_bar(capsys) -> None:
    with progress.shown() as show:
        show(Progress(3, 4, 100))
    assert capsys.readouterr().err == ""
