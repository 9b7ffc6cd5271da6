"""Waiting for the end of processes that are not this one's own children."""

import time
from collections.abc import Collection

import psutil


def wait_until_gone(processes: Collection[psutil.Process], *, seconds: float) -> None:
    """Fails if one still runs after so many seconds; a helper of its ends only once it sees that its parent has."""
    deadline = time.monotonic() + seconds
    while left := [process for process in processes if runs(process)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def runs(process: psutil.Process) -> bool:
    """Whether it still does something; a zombie waits only for the machine's init to read its status."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
