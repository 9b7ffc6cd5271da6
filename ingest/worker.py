"""A process that reads files for another one: `python -m ingest.worker DESCRIPTOR`, started by ingest/workers.py."""

import os
import resource
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

ORPHAN_SECONDS = 1.0
NICENESS = 5
"""Embedding goes first: its threads wait for each other, so that a worker that held up one would hold up all."""


def serve(connection: "Connection[Any, Any]") -> None:
    """Take a `Job`, then answer each file and its path with what the job reads in it, until the other side hangs up."""
    job = connection.recv()
    _limit_memory(job.memory_mib * 2**20)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # what native readers say is not for the user
    connection.send(None)
    while True:
        file, path = connection.recv()
        for read in job.read(file, path):
            connection.send(read)


def _limit_memory(size: int) -> None:
    """Let allocations beyond it fail. What is mapped from files, such as libraries, does not count."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))


def _die_with(parent: int) -> None:
    """End this process when its parent is gone, were it killed while a file is read that never ends."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_SECONDS)
    os._exit(1)


def main() -> None:
    """Serve the socket whose descriptor is the argument."""
    os.nice(NICENESS)
    threading.Thread(target=_die_with, args=(os.getppid(),), daemon=True).start()
    with suppress(EOFError, ConnectionError):  # the parent hung up
        serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()
