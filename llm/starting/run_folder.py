"""The private folder of one engine: its sockets, its log pipe and its temporary files; gone when the engine stops."""

import fcntl
import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "groundwell-run-"
NAME = re.compile(PREFIX + r"[a-z0-9_]{8}")  # as tempfile.mkdtemp makes them
SOCKET_NAME = 36
"""vLLM names its sockets by UUIDs."""
LONGEST = 107 - len("//") - SOCKET_NAME - len(PREFIX) - 8
"""Bytes of the place that a run folder is made in: a Unix socket's path (`sun_path`) has 107."""
SHORT = ("/tmp", "/var/tmp", "/dev/shm")
SHARED_MEMORY = Path("/dev/shm")


class RunFolder:
    """A new folder with mode 0700, locked as long as this process or an engine that it forked lives.

    Those that dead processes left behind are removed first. Raises OSError where no folder can be made.
    """

    def __init__(self) -> None:
        place = short_place(Path(tempfile.gettempdir()))
        sweep(place)
        self.path, self._lock = _made_in(place)

    def remove(self) -> None:
        """Remove it with all that is in it. Safe to call again."""
        if self.path.exists():
            remove(self.path)
            os.close(self._lock)


def short_place(wanted: Path) -> Path:
    """`wanted`, or another place for temporary files where the path of a socket does not become too long."""
    for place in (wanted, *map(Path, SHORT)):
        if len(os.fsencode(place)) <= LONGEST and os.access(place, os.W_OK | os.X_OK):
            return place
    raise OSError(f"{wanted} is too long for the path of a socket: set TMPDIR to a folder of at most {LONGEST} bytes")


def remove(folder: Path) -> None:
    """Remove a run folder, and the shared memory that killed workers of its engine leave."""
    for meeting_place in folder.glob("vllm_dist_*"):
        for memory in SHARED_MEMORY.glob(f"{meeting_place.name}-*"):  # vLLM's workers on a CPU name it so
            memory.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _made_in(place: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        with suppress(FileNotFoundError):  # swept by another process before it was locked
            lock = os.open(path, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return path, lock
            os.close(lock)


def sweep(place: Path) -> None:
    """Remove this user's run folders that nobody holds locked any more."""
    for folder in place.iterdir():
        if NAME.fullmatch(folder.name):
            with suppress(OSError):  # another process holds it, or has swept it
                _remove_unless_held(folder)


def _remove_unless_held(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return
    lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(folder)
    finally:
        os.close(lock)
