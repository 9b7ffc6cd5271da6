"""Keeps the chunks of a collection in memory as the journal has them, and reads what is missing from Chroma."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ingest.batches import in_batches
from ingest.journal import Journal
from ingest.resident import Resident

AT_ONCE = 1000
"""Chunks that a question waits for; more are read by a thread of its own, while Chroma answers."""
SMALL = 10_000
"""Up to so many chunks all are compared with every question, which takes a millisecond, and the first question waits
for them: Chroma's index does not reach every chunk (of 180 unlike ones, 4 were found by no question)."""
READ = 500
"""Chunks read at a time: 0.07 ms each, in part of which no other thread runs."""

log = logging.getLogger(__name__)


class Memory:
    """One collection's chunks. Any thread may ask for them; whoever made it closes it."""

    def __init__(self, journal: Journal, collection: str, read: Callable[[Iterable[str]], Iterator[Any]]) -> None:
        """`read` gives Chroma's ids, embeddings and metadatas of chunks, some at a time."""
        self.journal, self.collection, self._read = journal, collection, read
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._generation: int | None = None
        self._resident = Resident()
        self._last: tuple[int, str] = (-1, "")
        self._absent: set[str] = set()
        self._reading: threading.Thread | None = None

    def close(self) -> None:
        """Stop reading."""
        self._closed.set()
        if self._reading:
            self._reading.join()

    def at(self, generation: int, *, begin: bool = True) -> Resident | None:
        """The chunks as they were at least at that generation; None while many are being read, which this may begin."""
        if self._generation == generation:
            return self._resident
        if not begin:
            return None
        with self._lock:
            if self._generation != generation and not (self._reading and self._reading.is_alive()):
                self._catch_up(generation)
            return self._resident if self._generation == generation else None

    def wait(self) -> None:
        """Until what is being read is there."""
        if self._reading:
            self._reading.join()

    def _catch_up(self, generation: int) -> None:
        new = self._changed()
        if len(new) <= AT_ONCE or len(self._resident.row_of) + len(new) <= SMALL:
            self._add(new, generation)
        else:
            self._reading = threading.Thread(target=self._read_many, args=(new, generation), name="memory")
            self._reading.start()

    def _changed(self) -> list[str]:
        """Drop what is gone; the ids of what is new. Reads all ids of the journal only where some have gone."""
        resident, (last, id_) = self._resident, self._last
        found = self.journal.after(last)
        known = len(resident.row_of) + len(self._absent)
        if known and (known + len(found) != self.journal.count()[1] or self.journal.id_at(last) != id_):
            found = self.journal.after(-1)
            there = {one for _, one in found}
            resident.drop([one for one in resident.row_of if one not in there])
            self._absent &= there
        if 2 * resident.gone > len(resident):
            resident = self._resident = Resident()
        self._last = found[-1] if found else self._last
        return [one for _, one in found if one not in resident.row_of and one not in self._absent]

    def _read_many(self, new: list[str], generation: int) -> None:
        from chromadb.errors import ChromaError

        try:
            self._add(new, generation)
        except ChromaError:  # the next question tries again, and until then Chroma answers
            log.warning("the chunks cannot be read into memory yet", exc_info=True)

    def _add(self, new: list[str], generation: int) -> None:
        import numpy

        for ids in in_batches(new, READ):
            if self._closed.is_set() or not threading.main_thread().is_alive():
                return
            wanted = [id_ for id_ in ids if id_ not in self._resident.row_of]
            for got in self._read(wanted):
                if got["ids"]:
                    self._resident.add(got["ids"], numpy.asarray(got["embeddings"], dtype="float32"), got["metadatas"])
            self._absent.update(id_ for id_ in wanted if id_ not in self._resident.row_of)
        self._generation = generation
