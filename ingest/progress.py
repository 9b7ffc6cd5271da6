"""How far an ingest is: a bar on a terminal, a line every ten seconds in a log, whatever the run is busy with."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from ingest.output import warn
from ingest.report import Progress

if TYPE_CHECKING:
    from tqdm import tqdm

BAR_SECONDS = 1.0
LOG_SECONDS = 10.0
COMPARING = "comparing the files with what is in"
"""Said before it is known how many there are to read."""

Tell = Callable[[Progress], None]


def shown() -> AbstractContextManager[Tell]:
    """Takes the progress of a run and shows it on stderr."""
    return _bar() if sys.stderr.isatty() else _log()


class Log:
    """Lines of how far a run is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._begun = clock, clock()
        self._last: Progress | None = None

    def take(self, progress: Progress) -> None:
        self._last = progress

    def tell(self) -> None:
        """Print a line of what was taken last."""
        warn(line(self._last, self._clock() - self._begun) if self._last else COMPARING)


def line(progress: Progress, seconds: float) -> str:
    """As `120 of 1000 files, 150 read, 3400 chunks, 25 chunks/s, 0:04:12 left`."""
    parts = [f"{progress.files} of {progress.total} files", f"{progress.read} read", f"{progress.chunks} chunks"]
    parts.append(f"{progress.chunks / seconds:.0f} chunks/s")
    if progress.files:
        left = timedelta(seconds=round(seconds * (progress.total - progress.files) / progress.files))
        parts.append(f"{left} left")
    return ", ".join(parts)


@contextmanager
def _log() -> Iterator[Tell]:
    log = Log()
    with _every(LOG_SECONDS, log.tell):
        yield log.take


@contextmanager
def _bar() -> Iterator[Tell]:
    from tqdm import tqdm

    with tqdm(unit="file", desc=COMPARING, file=sys.stderr, **_size()) as bar, _every(BAR_SECONDS, bar.refresh):
        yield lambda progress: _move(bar, progress)


def _size() -> dict[str, int]:
    """For tqdm, which shows nothing on a terminal that says 0 by 0, as a container's may; else it finds out itself."""
    with suppress(OSError):
        if os.get_terminal_size(sys.stderr.fileno()).columns == 0:
            return {"ncols": 80, "nrows": 24}
    return {}


def _move(bar: "tqdm", progress: Progress) -> None:
    if bar.total is None:
        bar.set_description_str(None, refresh=False)
        bar.reset(progress.total)  # the time before it is no measure of the time left
    rate = progress.chunks / (bar.format_dict["elapsed"] or 1)
    bar.set_postfix_str(f"{progress.read} read, {rate:.0f} chunks/s", refresh=False)
    bar.n = progress.files
    bar.refresh()


@contextmanager
def _every(seconds: float, tick: Callable[[], object]) -> Iterator[None]:
    """Ticks in a thread of its own."""
    stopped = threading.Event()

    def run() -> None:
        while not stopped.wait(seconds):
            tick()

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
