"""One writer per knowledge base: a lock file that names its holder."""

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TextIO


class AlreadyWriting(Exception):
    """Another process (or another task of this one) writes to the knowledge base now."""


@contextmanager
def writer_lock(path: Path, name: str) -> Iterator[None]:
    """Hold the lock of the knowledge base `name`; the system lets it go when the process dies, however it dies.

    Raises AlreadyWriting at once, with the holder's process, command and start.
    """
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyWriting(
                f"knowledge base {name!r} is being written by {_holder(file)}; try again later"
            ) from error
        file.truncate(0)
        json.dump(_self(), file)
        file.flush()
        yield
        file.truncate(0)


def _self() -> dict[str, str | int]:
    since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    return {"pid": os.getpid(), "command": " ".join(sys.argv), "since": since}


def _holder(file: TextIO) -> str:
    file.seek(0)
    try:
        holder = json.loads(file.read())
    except json.JSONDecodeError:  # it has only just taken the lock
        return "another process"
    return f"process {holder['pid']} ({holder['command']}) since {holder['since']}"
