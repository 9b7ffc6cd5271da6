"""Tells when something in a folder has changed."""

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

    Asked again and again; what changes before it is asked is not missed. Ctrl-C raises KeyboardInterrupt. Set
    WATCHFILES_FORCE_POLLING=true for a network drive: the system does not tell what other machines change on it.
    """
    from watchfiles import watch

    folder, store = folder.resolve(), store.resolve()

    def counts(_: object, name: str) -> bool:
        path = Path(name)
        return not is_hidden(path.relative_to(folder).as_posix()) and not path.is_relative_to(store)

    found = watch(
        folder,
        watch_filter=counts,
        debounce=GATHERED_MILLISECONDS,
        step=QUIET_MILLISECONDS,
        rust_timeout=ASKED_MILLISECONDS,
        yield_on_timeout=True,
    )
    yield from map(bool, found)
