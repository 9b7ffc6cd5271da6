"""What vLLM's processes write, read through a named pipe: its end is kept, and stderr gets it once the engine runs."""

import os
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path

PIPE = "log"
KEPT = 400
"""Lines; the tracebacks of a failed start with four workers have about 300."""
TOLD = "groundwell: "
"""Begins a line of our own code in vLLM's process."""
END = "\0end of the log"


class EngineLog:
    """A named pipe in `folder` and the thread that reads it, until `close`."""

    def __init__(self, folder: Path, *, aloud: bool) -> None:
        """`aloud`: pass every line on to stderr from the beginning, not only from `engine_runs` on."""
        os.mkfifo(folder / PIPE, mode=0o600)
        # For writing too, so that it does not end when the first of vLLM's processes does.
        self._pipe = os.open(folder / PIPE, os.O_RDWR)
        self._aloud = aloud
        self._lines: deque[str] = deque(maxlen=KEPT)
        self._thread = threading.Thread(target=self._read, name="groundwell-engine-log", daemon=True)
        self._thread.start()

    @property
    def lines(self) -> list[str]:
        """The last lines, oldest first."""
        return list(self._lines)

    def engine_runs(self) -> None:
        """Forget what was written at the start, and pass on what comes now."""
        self._lines.clear()
        self._aloud = True

    def close(self) -> None:
        """Read what has been written so far, and end. Safe to call again."""
        if self._thread.is_alive():
            os.write(self._pipe, f"{END}\n".encode())
            self._thread.join()
            os.close(self._pipe)

    def _read(self) -> None:
        with open(self._pipe, encoding="utf-8", errors="replace", closefd=False) as stream:
            for line in stream:
                told, ended, _ = line.partition(END)
                if told:
                    self._keep(told.rstrip("\n"))
                if ended:
                    return

    def _keep(self, line: str) -> None:
        self._lines.append(line)
        if self._aloud:
            with suppress(OSError):  # stderr is closed, or a pipe that nobody reads
                os.write(2, f"{line}\n".encode())
