"""Stand-ins for readers that misbehave: a worker runs them where it would count an embedder's tokens."""

import os
import signal
import time

from tests.fakes import WordCountEmbedder


class Troublesome:
    """Counts words, except that a text which names a trouble gets it."""

    def offsets(self, text: str) -> list[tuple[int, int]]:
        for trouble, have in TROUBLES.items():
            if trouble in text:
                have()
        return [(0, len(text))]


class TroublesomeEmbedder(WordCountEmbedder):
    """The same, for a knowledge base."""

    offsets = Troublesome.offsets


class Unloadable:
    """Cannot be had in another process."""

    offsets = None

    def __reduce__(self):
        return refuse, ()


def refuse() -> None:
    raise ImportError("not in this process")


def fail() -> None:
    raise ValueError("an unexpected\nnumber: 七" + "!" * 10**6)


def take_memory() -> None:
    bytearray(2**33)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


TROUBLES = {
    "hangs": lambda: time.sleep(600),
    "crashes": crash,
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exits": lambda: os._exit(3),
    "fails": fail,
    "takes memory": take_memory,
}
