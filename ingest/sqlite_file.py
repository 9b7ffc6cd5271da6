"""An SQLite file in WAL mode that any thread may ask, with a connection of its own for the one who writes."""

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ingest import schema
from ingest.batches import in_batches

VARIABLES = 500
"""Values in one `IN (...)`; SQLite's own limit may be as low as 999."""


class SQLiteFile:
    """The file with today's tables, its questions and its transactions."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reading, self._writing = threading.Lock(), threading.Lock()
        # Two connections, so that a question never waits for a document that is being written.
        self._reader, self._writer = _connect(path), _connect(path)
        self._writer.execute("PRAGMA journal_mode = WAL")
        self._writer.execute("PRAGMA synchronous = NORMAL")  # in WAL mode enough for a kill at any moment
        schema.migrate(self._writer)
        self._file = path.stat()

    def close(self) -> None:
        """Close the file."""
        with self._reading, self._writing:
            self._reader.close()
            self._writer.close()

    def is_at_its_path(self) -> bool:
        """Whether the file of that path still is this one: it may have been deleted, or made anew."""
        try:
            return os.path.samestat(self._path.stat(), self._file)
        except FileNotFoundError:
            return False

    def is_broken(self) -> bool:
        """Whether a table is damaged."""
        return any(self._rows(f"PRAGMA quick_check({table})") != [("ok",)] for table in schema.NAMES)

    @contextmanager
    def _transaction(self, *, changing: bool = True) -> Iterator[sqlite3.Connection]:
        with self._writing:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                if changing:
                    self._writer.execute("UPDATE generation SET number = number + 1")
                self._writer.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.DatabaseError):  # a full disk may have ended the transaction already
                    self._writer.execute("ROLLBACK")
                raise

    def _rows(self, query: str, values: Iterable = ()) -> list[tuple]:
        with self._reading:
            return self._reader.execute(query, tuple(values)).fetchall()

    def _where_in(self, query: str, values: Iterable) -> list[tuple]:
        found = []
        for some in in_batches(values, VARIABLES):
            found += self._rows(f"{query} ({','.join('?' * len(some))})", some)
        return found


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
