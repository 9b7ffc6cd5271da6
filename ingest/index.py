"""Chroma's index files: one process writes them at a time, and none while another loads them.

Chroma writes a collection's index (`data_level0.bin`, `link_lists.bin` …) in place, in whatever process has seen
`sync_threshold` rows since the last time, and a process that only reads has seen them as soon as it loads. With a
writer and one reader that loads every second, 1.5.9 ended in a reader killed by SIGSEGV or a `link_lists.bin` of 27 GB.
So the threshold is one that is never reached (what is not in the files is in Chroma's log, from which every load takes
it), and only the writer's client has found a lower one; it writes under a lock that loading shares.
"""

import fcntl
import pickletools
import shutil
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ingest.collection import NEVER, index_backup_path, index_lock_path, open_chroma

if TYPE_CHECKING:
    from chromadb.api import ClientAPI
    from chromadb.api.models.Collection import Collection

LIST_OF_IDS = "index_metadata.pickle"
"""The last of the index files that Chroma writes."""


class IndexBusy(Exception):
    """The index files are being written."""


@contextmanager
def index_lock(folder: Path, name: str, *, exclusive: bool, wait: bool = True) -> Iterator[None]:
    """Keep the files of a knowledge base's index as they are, or, `exclusive`, be the one who writes or makes them.

    Raises IndexBusy when it would have to wait and may not.
    """
    mode = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    with index_lock_path(folder, name).open("ab") as file:
        try:
            fcntl.flock(file, mode if wait else mode | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise IndexBusy from error
        yield


def load(folder: Path, name: str, live: str, *, wait: bool = True) -> tuple["ClientAPI", "Collection"]:
    """A client that has loaded the index as it is now, with what the log adds to it. Raises IndexBusy if not `wait`."""
    with index_lock(folder, name, exclusive=False, wait=wait):
        if not index_backup_path(folder, name).exists():
            client, collection = _open(folder, live)
            if _threshold(collection) == NEVER:
                return client, _touched(collection)
    # Made before there was this lock, or left by a writer that was killed: loading it writes it.
    with index_lock(folder, name, exclusive=True, wait=wait):
        _restore(folder, name)
        return _settled(folder, name, live)


def load_for_writing(
    folder: Path, name: str, live: str, *, rows: int, unwritten: int
) -> tuple["ClientAPI", "Collection"]:
    """A client that writes the index files by itself each time that it has seen so many rows, and others do not.

    Loading writes them too where so many are unwritten.
    Its writes that may be the last of so many need the exclusive lock. Only for the one who holds the writer's lock.
    """
    with index_lock(folder, name, exclusive=True):
        _restore(folder, name)
        _, collection = _open(folder, live)
        set_threshold(collection, rows)
        client, collection = _open(folder, live)  # a client keeps to the threshold that it has found
        with kept_until_written(folder, name, collection) if unwritten >= rows else nullcontext():
            set_threshold(_touched(collection), NEVER)
        return client, collection


@contextmanager
def kept_until_written(folder: Path, name: str, collection: "Collection") -> Iterator[None]:
    """Around what may make Chroma write the index files: for the one who holds the exclusive lock.

    After a failure the copy stays, for the next that loads.
    """
    backup = index_backup_path(folder, name)
    if not backup.exists():
        unfinished = backup.with_suffix(".new")
        _delete(unfinished)
        unfinished.mkdir()
        for segment in _segments(folder, collection):
            shutil.copytree(segment, unfinished / segment.name, copy_function=shutil.copyfile)
        unfinished.rename(backup)
    yield
    _delete(backup)


def written_at(folder: Path, collection: "Collection") -> int:
    """When the index files were written, in nanoseconds; 0 when they never were."""
    times = [path.stat().st_mtime_ns for path in index_files(folder, collection) if path.name == LIST_OF_IDS]
    return max(times, default=0)


def index_files(folder: Path, collection: "Collection") -> list[Path]:
    """The files of a collection's index."""
    return [path for segment in _segments(folder, collection) for path in segment.glob("*")]


def _segments(folder: Path, collection: "Collection") -> list[Path]:
    """The folders of a collection's index, which are there once it has a chunk."""
    uri = (folder / "chroma" / "chroma.sqlite3").absolute().as_uri() + "?mode=ro"
    with closing(sqlite3.connect(uri, uri=True)) as chroma:
        segments = chroma.execute("SELECT id FROM segments WHERE collection = ?", (str(collection.id),)).fetchall()
    return [path for (segment,) in segments if (path := folder / "chroma" / segment).is_dir()]


def _restore(folder: Path, name: str) -> None:
    """Go back to the copy of files whose writing was not finished, however often this is killed itself."""
    backup = index_backup_path(folder, name)
    for before in sorted(backup.glob("*")):
        segment = folder / "chroma" / before.name
        if segment.is_dir() and not _is_written(segment, before):
            for file in segment.glob("*"):
                file.unlink()
            for file in before.glob("*"):
                shutil.copyfile(file, segment / file.name)
    _delete(backup)


def _is_written(segment: Path, before: Path) -> bool:
    """Whether the last of the files is another one than before, and whole."""
    now, then = segment / LIST_OF_IDS, before / LIST_OF_IDS
    if not now.is_file() or (then.is_file() and now.read_bytes() == then.read_bytes()):
        return False
    with suppress(ValueError):
        return sum(1 for _ in pickletools.genops(now.read_bytes())) > 0
    return False


def _delete(*folders: Path) -> None:
    """Each at once, so that no part of one is taken for the whole."""
    for folder in folders:
        if folder.exists():
            gone = folder.with_suffix(".gone")
            shutil.rmtree(gone, ignore_errors=True)
            shutil.rmtree(folder.rename(gone))


def _settled(folder: Path, name: str, live: str) -> tuple["ClientAPI", "Collection"]:
    _, collection = _open(folder, live)
    with kept_until_written(folder, name, collection):
        set_threshold(_touched(collection), NEVER)
    client, collection = _open(folder, live)
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


def set_threshold(collection: "Collection", rows: int) -> None:
    """Takes effect in clients that are opened after it."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of collections without an embedder
        collection.modify(configuration={"hnsw": {"sync_threshold": rows}})
