"""Worker processes that read files: one that dies, takes too long or too much memory costs its file and no more."""

import math
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from ingest.prepare import FileEnd, Job, Read

LOOK_SECONDS = 0.5
"""How often the time limits are looked at."""
TOO_SLOW = (
    "was not read after {:g} s: raise `file_seconds` in `[ingest]` of the settings file, or leave it out with --exclude"
)
CRASHED = (
    "its reader crashed ({}): convert it to another format, give it more than the {} MiB of memory that it may take now"
    " (`file_memory_mib` in `[ingest]` of the settings file), or leave it out with --exclude"
)

FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Signals that no reader's fault gives: the system or a person has ended the process, and the next time may not."""

File = tuple[str, Path]
"""A file's name as a source, and where it is."""


class WorkerNotStarted(Exception):
    """A worker process ended before it read anything."""


class EmbedderNotShared(Exception):
    """The embedder cannot be had in another process, where tokens are counted."""

    def __init__(self, embedder: object, reason: str) -> None:
        super().__init__(
            f"{type(embedder).__qualname__} cannot be sent to the processes that read files: {reason}; or set"
            " `workers = 0` in `[ingest]` of the settings file, which reads in this process, without limits on a file"
        )


class Workers:
    """Processes that read files, one file each at a time.

    They are no `multiprocessing` ones: those would run the main module again, which a script without
    `if __name__ == "__main__"` does not survive.
    """

    def __init__(self, count: int, seconds: float) -> None:
        """`seconds` is the time from one document of a file to the next, at most."""
        self._workers = [_Worker(seconds) for _ in range(count)]
        self._stopping = False

    def __enter__(self) -> "Workers":
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.kill()

    def read(self, files: Iterable[File], job: Job) -> Generator[tuple[str, Read], None, None]:
        """What is in the files, each with its file's name; what is of one file in order, up to its FileEnd.

        As many are taken before they are asked for as there are processes. Raises EmbedderNotShared and
        WorkerNotStarted.
        """
        reads = self._read(iter(files), job, _pickled(job))
        thread = ThreadPoolExecutor(1, thread_name_prefix="reading")
        try:
            taken = deque(thread.submit(next, reads, None) for _ in self._workers)
            while read := taken.popleft().result():
                taken.append(thread.submit(next, reads, None))
                yield read
        finally:
            self._stopping = True
            thread.shutdown(cancel_futures=True)

    def _read(self, files: Iterator[File], job: Job, pickled: bytes) -> Iterator[tuple[str, Read]]:
        while not self._stopping:
            for worker in self._workers:
                if worker.file is None and (file := next(files, None)):
                    worker.give(file, job, pickled)
            busy = {worker.connection: worker for worker in self._workers if worker.file is not None}
            if not busy:
                return
            ready = wait(list(busy), LOOK_SECONDS)
            for connection, worker in busy.items():
                if read := worker.take() if connection in ready else worker.end_if_late():
                    yield read


def _pickled(job: Job) -> bytes:
    if type(job.tokens).__module__ == "__main__":
        raise EmbedderNotShared(job.tokens, "define its class in a module, not in the script")
    try:
        return pickle.dumps(job)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise EmbedderNotShared(job.tokens, f"give it a `__reduce__`, for pickling fails ({error})") from error


class _Worker:
    """One process at a time, and the file that it reads."""

    file: str | None = None
    process: "subprocess.Popen[bytes] | None" = None
    connection: "Connection[Any, Any]"
    job: Job | None = None
    deadline = math.inf

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def start(self) -> None:
        """Start the process, which imports while nobody waits for it."""
        self.connection, theirs = Pipe()
        # What this process can import its workers can, and nothing out of the folder it happens to run in (-P).
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        command = [sys.executable, "-P", "-W", "ignore", "-m", "ingest.worker", str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(
                command,
                env=os.environ | {"PYTHONPATH": paths},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C in a terminal is for the parent, which ends this process
            )

    def give(self, file: File, job: Job, pickled: bytes) -> None:
        """Let the process read a file."""
        if self.process is None:
            self.start()
        with suppress(ConnectionError):  # it has died; `take` will say so
            if self.job is None:
                self.connection.send_bytes(pickled)
                self.job = job
            else:
                self.deadline = time.monotonic() + self.seconds
            self.connection.send(file)
        self.file = file[0]

    def take(self) -> tuple[str, Read] | None:
        """What the process has sent; nothing when that is only that it is ready."""
        try:
            read = self.connection.recv()
        except (EOFError, ConnectionError):
            return self._end(self._death())
        self.deadline = time.monotonic() + self.seconds
        return self._sent(read) if read else None

    def end_if_late(self) -> tuple[str, Read] | None:
        """End a process that has sent nothing for too long."""
        return (
            self._end(FileEnd(TOO_SLOW.format(self.seconds), is_costly=True))
            if time.monotonic() > self.deadline
            else None
        )

    def kill(self) -> None:
        """End the process; a later file gets a new one."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.connection.close()
        self.process = self.job = self.file = None
        self.deadline = math.inf

    def _sent(self, read: Read) -> tuple[str, Read]:
        assert self.file is not None
        sent = self.file, read
        if isinstance(read, FileEnd):
            self.file, self.deadline = None, math.inf
        return sent

    def _end(self, end: FileEnd) -> tuple[str, Read]:
        sent = self._sent(end)
        self.kill()
        return sent

    def _death(self) -> FileEnd:
        assert self.process
        status = self.process.wait()
        if self.deadline == math.inf or self.job is None:
            raise WorkerNotStarted(f"a process to read files ended with status {status} before it read one")
        cause = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return FileEnd(CRASHED.format(cause, self.job.memory_mib), is_costly=-status not in FROM_OUTSIDE)
