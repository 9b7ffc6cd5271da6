"""Chroma's index files: one process writes them at a time, and none while another loads them.

Chroma writes a collection's index (`data_level0.bin`, `link_lists.bin` …) in place, in whatever process has seen
`sync_threshold` rows since the last time, and a process that only reads has seen them as soon as it loads. With a
writer and one reader that loads every second, 1.5.9 ended in a reader killed by SIGSEGV or a `link_lists.bin` of 27 GB.
So the threshold is one that is never reached (what is not in the files is in Chroma's log, from which every load takes
it), and the writer alone lowers it, under a lock that loading shares.
"""

import fcntl
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ingest.collection import NEVER, index_lock_path, open_chroma

if TYPE_CHECKING:
    from chromadb.api import ClientAPI
    from chromadb.api.models.Collection import Collection

NOW = 2
"""The least threshold that Chroma takes; a single row stays in the log."""


class IndexBusy(Exception):
    """The index files are being written."""


@contextmanager
def index_lock(folder: Path, name: str, *, exclusive: bool, wait: bool = True) -> Iterator[None]:
    """Keep the files of a knowledge base's index as they are, or, `exclusive`, be the one who writes or makes them.

    Raises IndexBusy when it would have to wait and may not.
    """
    mode = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    with index_lock_path(folder, name).open("a") as file:
        try:
            fcntl.flock(file, mode if wait else mode | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise IndexBusy from error
        yield


def load(folder: Path, name: str, live: str, *, wait: bool = True) -> tuple["ClientAPI", "Collection"]:
    """A client that has loaded the index as it is now, with what the log adds to it. Raises IndexBusy if not `wait`."""
    with index_lock(folder, name, exclusive=False, wait=wait):
        client, collection = _open(folder, live)
        if _threshold(collection) == NEVER:
            return client, _touched(collection)
    # Made before there was this lock, or left by a writer that was killed: loading it writes it.
    with index_lock(folder, name, exclusive=True, wait=wait):
        return _settled(folder, live)


def write(folder: Path, name: str, live: str) -> tuple["ClientAPI", "Collection"]:
    """Bring the index files up to date, and load them. Only for the one who holds the writer's lock."""
    with index_lock(folder, name, exclusive=True):
        _, collection = _open(folder, live)
        _set_threshold(collection, NOW)
        return _settled(folder, live)


def _settled(folder: Path, live: str) -> tuple["ClientAPI", "Collection"]:
    _, collection = _open(folder, live)
    _set_threshold(_touched(collection), NEVER)
    client, collection = _open(folder, live)  # a client keeps to the threshold that it has found
    return client, _touched(collection)


def _open(folder: Path, live: str) -> tuple["ClientAPI", "Collection"]:
    client = open_chroma(folder)
    return client, client.get_collection(live, embedding_function=None)


def _touched(collection: "Collection") -> "Collection":
    """The collection with its index loaded, which Chroma would put off until the first question."""
    collection.get(limit=1, include=["embeddings"])
    return collection


def _threshold(collection: "Collection") -> int | None:
    return (collection.configuration_json.get("hnsw") or {}).get("sync_threshold")


def _set_threshold(collection: "Collection", rows: int) -> None:
    """Takes effect in clients that are opened after it."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of collections without an embedder
        collection.modify(configuration={"hnsw": {"sync_threshold": rows}})
