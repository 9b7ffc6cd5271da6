"""Tells when something in a folder has changed."""

import time
from collections.abc import Iterator
from pathlib import Path

from ingest.listing import is_hidden

QUIET_MILLISECONDS = 500
"""A change is told when nothing else has happened for so long: a file that is being copied is not read half-way."""
GATHERED_MILLISECONDS = 5000
"""But no later than this after it."""
ASKED_MILLISECONDS = 200


def changes(folder: Path, store: Path) -> Iterator[bool]:
    """Whether something has changed below the folder since the last time, hidden files and the store aside.

    Asked again and again; what changes before it is asked is not missed. That the folder is gone is a change, and so is
    that it is there again or that another stands in its place. Ctrl-C raises KeyboardInterrupt. Set
    WATCHFILES_FORCE_POLLING=true for a network drive: the system does not tell what other machines change on it.
    """
    is_another = False
    while True:
        for changed in _below(folder, store):
            yield changed or is_another
            is_another = False
        yield not is_another  # gone, and whether that is new
        is_another = True


def _below(folder: Path, store: Path) -> Iterator[bool]:
    """The same as long as it is this very folder that has that path."""
    from watchfiles import watch

    identity, resolved, store = _identity(folder), folder.resolve(), store.resolve()
    if identity is None:
        time.sleep(ASKED_MILLISECONDS / 1000)
        return

    def counts(_: object, name: str) -> bool:
        path = Path(name)
        return not is_hidden(path.relative_to(resolved).as_posix()) and not path.is_relative_to(store)

    for found in watch(
        resolved,
        watch_filter=counts,
        debounce=GATHERED_MILLISECONDS,
        step=QUIET_MILLISECONDS,
        rust_timeout=ASKED_MILLISECONDS,
        yield_on_timeout=True,
    ):
        if _identity(folder) != identity:
            return
        yield bool(found)


def _identity(folder: Path) -> tuple[int, int] | None:
    """What makes it another folder when its path stays; none when it is not there."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if folder.is_dir() else None
