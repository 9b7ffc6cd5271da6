"""How far an ingest is: a bar on a terminal, a line every ten seconds in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from ingest.output import warn
from ingest.report import Progress

LOG_SECONDS = 10.0


@contextmanager
def shown() -> Iterator[Callable[[Progress], None]]:
    """Takes the progress of a run and shows it on stderr."""
    if not sys.stderr.isatty():
        yield log_lines()
        return
    from tqdm import tqdm

    with tqdm(unit="file", file=sys.stderr) as bar:

        def show(progress: Progress) -> None:
            bar.total = progress.total
            bar.set_postfix_str(f"{progress.chunks / (bar.format_dict['elapsed'] or 1):.0f} chunks/s", refresh=False)
            bar.update(progress.files - bar.n)

        yield show


def log_lines(clock: Callable[[], float] = time.monotonic) -> Callable[[Progress], None]:
    """Takes progress and prints a line of it, once in LOG_SECONDS at most."""
    begun = last = clock()

    def show(progress: Progress) -> None:
        nonlocal last
        if (now := clock()) - last >= LOG_SECONDS:
            last = now
            warn(line(progress, now - begun))

    return show


def line(progress: Progress, seconds: float) -> str:
    """As `120 of 1000 files, 3400 chunks, 25 chunks/s, 0:04:12 left`."""
    parts = [f"{progress.files} of {progress.total} files", f"{progress.chunks} chunks"]
    parts.append(f"{progress.chunks / seconds:.0f} chunks/s")
    if progress.files:
        left = timedelta(seconds=round(seconds * (progress.total - progress.files) / progress.files))
        parts.append(f"{left} left")
    return ", ".join(parts)
