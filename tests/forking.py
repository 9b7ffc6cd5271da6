"""Worker processes forked from one that has imported what they need: `python -m tests.forking DESCRIPTOR`.

The fast tests run hundreds of ingests, whose worker processes took most of their time to import the same modules again.
They are processes of their own as ever: a test may let one crash, hang or be killed. `tests/ingest/test_workers.py`
and every command that is run as a process start the product's own.
"""

import os
import pickle
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import ingest.prepare
import ingest.worker
import tests.fakes  # noqa: F401  (of its classes are the jobs' tokens)

MESSAGE = 2**16


class Forked:
    """As much of a Popen as a worker needs."""

    def __init__(self, pid: int, status: "Connection[Any, Any]") -> None:
        self.pid, self._status = pid, status
        self._code: int | None = None

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, 9)

    def wait(self) -> int:
        if self._code is None:
            self._code = self._status.recv()
            self._status.close()
        return self._code


class Forker:
    """The process that forks, from the first fork to the end of the `with` block."""

    _process: "subprocess.Popen[bytes] | None" = None

    def __enter__(self) -> "Forker":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._ours.close()
            self._process.wait()

    def fork(self) -> "tuple[Forked, Connection[Any, Any]]":
        """A worker, and the connection to it."""
        if not self._process:
            self._start()
        connection, workers = Pipe()
        status, forkers = Pipe(duplex=False)
        with workers, forkers:
            surroundings = pickle.dumps((Path.cwd(), dict(os.environ)))
            socket.send_fds(self._ours, [surroundings], [workers.fileno(), forkers.fileno()])
            return Forked(int(self._ours.recv(MESSAGE)), status), connection

    def _start(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.forking", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=Path(__file__).parents[1],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )


def main() -> None:
    """Fork a worker for each message, until the other side hangs up."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    while True:
        surroundings, descriptors, _, _ = socket.recv_fds(requests, MESSAGE, 2)
        if not surroundings:
            return
        worker, status = descriptors
        if pid := os.fork():
            os.close(worker)
            threading.Thread(target=_tell, args=(pid, Connection(status))).start()
            requests.send(str(pid).encode())
        else:
            requests.close()
            os.close(status)
            _work(*pickle.loads(surroundings), worker)


def _tell(pid: int, status: "Connection[Any, Any]") -> None:
    """Send the exit status of a worker when it ends."""
    _, code = os.waitpid(pid, 0)
    with status, suppress(ConnectionError):
        status.send(os.waitstatus_to_exitcode(code))


def _work(folder: Path, environment: dict[str, str], descriptor: int) -> None:
    status = 1
    try:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        os.setpgid(0, 0)
        sys.argv[1:] = [str(descriptor)]
        ingest.worker.main()
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
