"""A store that cannot be written (disk full, quota, no right to write) told in one sentence, whoever has met it."""

import errno
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingest.lexical import DamagedIndex

PROBE = 2**20
"""Bytes written to find out why others could not be."""
WRITING = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
CHROMAS = re.compile(r"disk I/O error|disk is full|readonly database|unable to open database|No space left|os error")
MENDS = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room within the quota of this user, or have it raised",
    errno.EFBIG: "let files become larger (`ulimit -f`, or another file system)",
    errno.EROFS: "have its file system mounted for writing",
    errno.EACCES: "give this user the right to write there",
    errno.EPERM: "give this user the right to write there",
    errno.ENOTDIR: "choose a folder as `path` in `[store]` of the settings file",
    errno.EEXIST: "choose a folder as `path` in `[store]` of the settings file",
    errno.EIO: "look into the system's log, for the disk may be failing",
}
ELSE = "make room, or look at who may write there"


class StoreNotWritable(Exception):
    """The store's folder takes no more; what is in it stays good, and the next run goes on from there."""

    def __init__(self, folder: Path, reason: str, mend: str) -> None:
        free = shutil.disk_usage(_nearest(folder)).free // 2**20
        super().__init__(
            f"the store {folder} cannot be written: {reason} ({free} MiB are free): {mend}, then run it again, and it"
            " goes on where it stopped"
        )


@contextmanager
def told_plainly(folder: Path) -> Iterator[None]:
    """Raise StoreNotWritable in place of whatever else is raised where the store takes no more."""
    from chromadb.errors import ChromaError

    try:
        yield
    except (OSError, sqlite3.OperationalError, ChromaError, DamagedIndex) as error:
        if not (trouble := _of_system(folder, error) or _probed(folder) or _of_database(error)):
            raise
        raise StoreNotWritable(folder, *trouble) from error


def _of_system(folder: Path, error: Exception) -> tuple[str, str] | None:
    """The reason and the mend, of an error of the system's on one of the store's files."""
    if not isinstance(error, OSError) or error.errno not in MENDS or not error.filename:
        return None
    file, store = Path(os.fsdecode(error.filename)).absolute(), folder.absolute()
    is_ours = file.is_relative_to(store) or store.is_relative_to(file)
    return (error.strerror or str(error), MENDS[error.errno]) if is_ours else None


def _probed(folder: Path) -> tuple[str, str] | None:
    """The same by trying: some bytes, and one behind the end of the largest file that there is."""
    try:
        largest = max((file.stat().st_size for file in folder.rglob("*") if file.is_file()), default=0)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
            probe.write(bytes(PROBE))
            os.fsync(probe.fileno())
            probe.seek(largest + PROBE)
            probe.write(b"\0")
    except FileNotFoundError:  # nobody has made it, or it changes under our hands
        return None
    except OSError as error:
        return error.strerror or str(error), MENDS.get(error.errno or 0, ELSE)
    return None


def _of_database(error: Exception) -> tuple[str, str] | None:
    """The same as SQLite or Chroma tells it."""
    if isinstance(error, sqlite3.OperationalError):
        return (str(error), ELSE) if error.sqlite_errorcode & 0xFF in WRITING else None
    return (str(error), ELSE) if CHROMAS.search(str(error)) else None


def _nearest(folder: Path) -> Path:
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if os.path.isdir(path))  # noqa: PTH112 (Path's may raise)
