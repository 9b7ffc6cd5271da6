"""Keeps a fork off while native code holds what a child could not let go of."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Forks:
    """Waits with a fork until tantivy holds no file's lock and no thread: a child would keep the one for as long as it
    lives, and wait for the other for ever."""

    def __init__(self) -> None:
        self._idle, self._working, self._is_told = threading.Condition(threading.Lock()), 0, False

    @contextmanager
    def kept_off(self) -> Iterator[None]:
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._idle:
            if not self._is_told:
                os.register_at_fork(
                    before=self._wait, after_in_parent=self._idle.release, after_in_child=self._idle.release
                )
                self._is_told = True
            self._working += change
            self._idle.notify_all()

    def _wait(self) -> None:
        self._idle.acquire()
        self._idle.wait_for(lambda: not self._working)
