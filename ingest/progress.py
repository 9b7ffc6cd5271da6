"""How far an ingest is: a bar on a terminal, a line every ten seconds in a log."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from ingest.report import Progress

LOG_SECONDS = 10.0
BAR_SECONDS = 0.5
BAR = "{percentage:3.0f}%|{bar}| {desc}"
NOT_YET = "looking for new and changed files"


@contextmanager
def shown() -> Iterator[Callable[[Progress], None]]:
    """Takes the progress of a run and shows it on stderr, by a clock of its own: whatever takes long, it is shown."""
    run = _Run()
    if not sys.stderr.isatty():
        with _every(LOG_SECONDS, lambda: print(run.line(), file=sys.stderr, flush=True)):
            yield run.tell
        return
    from tqdm import tqdm

    with tqdm(total=1, desc=NOT_YET, bar_format=BAR, file=sys.stderr, **_size()) as bar:

        def draw() -> None:
            bar.n = run.progress.share
            bar.set_description_str(run.line())

        with _every(BAR_SECONDS, draw):
            yield run.tell
        draw()


class _Run:
    """What was last told of a run, and when it began."""

    progress = Progress(0, 0, 0)

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def tell(self, progress: Progress) -> None:
        self.progress = progress

    def line(self) -> str:
        return line(self.progress, time.monotonic() - self._begun)


@contextmanager
def _every(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Do something again and again in a thread, which ends with the block."""
    ended = threading.Event()

    def run() -> None:
        with suppress(OSError):  # nobody reads stderr any more
            while not ended.wait(seconds):
                act()

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def line(progress: Progress, seconds: float) -> str:
    """As `120 of 1000 files read, 3400 chunks embedded, 25 chunks/s, 0:04:12 left`."""
    if not progress.total:
        return NOT_YET
    parts = [f"{progress.read} of {progress.total} files read", f"{progress.embedded} chunks embedded"]
    if progress.embedded:
        parts.append(f"{progress.embedded / seconds:.0f} chunks/s")
    if progress.share:
        parts.append(f"{timedelta(seconds=round(seconds / progress.share - seconds))} left")
    return ", ".join(parts)


def _size() -> dict[str, Any]:
    """For tqdm, which shows nothing on a terminal that says 0 by 0, as a container's may."""
    with suppress(OSError):
        if os.get_terminal_size(sys.stderr.fileno()).columns == 0:
            return {"ncols": 80, "nrows": 24}
    return {"dynamic_ncols": True}
