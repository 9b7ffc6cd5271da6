"""One writer per knowledge base: a lock file that names its holder."""

import fcntl
import json
import os
import re
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
    with _locked(path, name) as file:
        file.truncate(0)
        json.dump(_self(), file)
        file.flush()
        yield
        file.truncate(0)


def writing_now(path: Path) -> str | None:
    """Who holds the lock, by its file alone: trying it could refuse a writer that comes at this moment."""
    try:
        with path.open(encoding="utf-8") as file:
            os.kill(json.load(file)["pid"], 0)
            return _holder(file)
    except PermissionError:  # another user's
        return "another user's process"
    except (OSError, json.JSONDecodeError):  # nobody's, or a dead one's
        return None


@contextmanager
def _locked(path: Path, name: str) -> Iterator[TextIO]:
    while True:
        with path.open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise AlreadyWriting(
                    f"knowledge base {name!r} is being written by {_holder(file)}; try again later"
                ) from error
            if _is_at(path, file):
                yield file
                return


def _is_at(path: Path, file: TextIO) -> bool:
    """Whether the file still is the one of that path: who deletes a knowledge base takes its lock's file away."""
    return path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno()))


def _self() -> dict[str, str | int]:
    since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    return {"pid": os.getpid(), "command": _command(sys.argv), "since": since}


def _command(arguments: list[str]) -> str:
    """The command line without the passwords in it."""
    return re.sub(r"(--password[ =])\S+", r"\1…", " ".join(arguments))


def _holder(file: TextIO) -> str:
    file.seek(0)
    try:
        holder = json.loads(file.read())
    except json.JSONDecodeError:  # it has only just taken the lock
        return "another process"
    return f"process {holder['pid']} ({holder['command']}) since {holder['since']}"
