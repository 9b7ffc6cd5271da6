"""Tells when something in a folder has changed."""

from collections.abc import Iterator
from pathlib import Path

from ingest.listing import is_hidden

QUIET_MILLISECONDS = 500
"""A change is told when nothing else has happened for so long: a file that is being copied is not read half-way."""
GATHERED_MILLISECONDS = 5000
"""But no later than this after it."""
ASKED_MILLISECONDS = 200


def changes(folder: Path) -> Iterator[bool]:
    """Whether something has changed below the folder since the last time, hidden files aside; asked again and again.

    Ends at Ctrl-C. What changes before the next value is asked for is not missed. Set WATCHFILES_FORCE_POLLING=true for
    a network drive, whose changes by other machines the system does not tell.
    """
    from watchfiles import watch

    folder = folder.resolve()
    found = watch(
        folder,
        watch_filter=lambda _, path: not is_hidden(Path(path).relative_to(folder).as_posix()),
        debounce=GATHERED_MILLISECONDS,
        step=QUIET_MILLISECONDS,
        rust_timeout=ASKED_MILLISECONDS,
        yield_on_timeout=True,
    )
    try:
        for changed in found:
            yield bool(changed)
    except KeyboardInterrupt:
        return
