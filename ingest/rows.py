"""The rows of the journal: a document, a chunk, and what storing and dropping one does to the tables."""

import hashlib
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass

from ingest.terms import terms


@dataclass(frozen=True)
class StoredDocument:
    """A document in the knowledge base; `problems` are what its file holds and its text does not."""

    source: str
    content_hash: str
    chunks: int
    problems: tuple[str, ...] = ()
    file: str | None = None
    """The file it came from: itself, or the archive or mail it is in. None: it was added without a file."""


@dataclass(frozen=True)
class Failure:
    """What became of a file, of that content, that crashed its reader or went past a limit."""

    content_hash: str
    limits: str
    reason: str


@dataclass(frozen=True)
class StoredChunk:
    """What the journal keeps of a chunk; `text` goes to the lexical index only."""

    id: str
    digest: bytes
    text: str

    @classmethod
    def of(cls, id_: str, text: str) -> "StoredChunk":
        """The chunk of that id and text."""
        return cls(id_, hashlib.sha256(text.encode()).digest(), text)


def chunk_id(source: str, content_hash: str, index: int) -> str:
    """The id of a document's chunk. It names the file, its content and the place in it, so that equal files and equal
    paragraphs get different ids, and a changed file never reuses one."""
    return hashlib.sha256(f"{source}\x00{content_hash}\x00{index}".encode()).hexdigest()[:32]


def count_unwritten(connection: sqlite3.Connection, rows: int) -> None:
    query = "INSERT INTO about VALUES ('unwritten', ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value"
    connection.execute(query, (rows,))


def note_indexed(connection: sqlite3.Connection, mark: str, number: int | None = None) -> None:
    """Note what the lexical index is; with a number, that it has seen the changes up to that one."""
    connection.execute("INSERT OR REPLACE INTO about VALUES ('lexical', ?)", (mark,))
    connection.execute("DELETE FROM unindexed WHERE number <= ?", (number or 0,))


def insert(connection: sqlite3.Connection, chunk: StoredChunk, source: str) -> None:
    connection.execute("INSERT INTO chunks (id, digest, source) VALUES (?, ?, ?)", (chunk.id, chunk.digest, source))
    connection.execute("INSERT INTO unindexed (id, terms) VALUES (?, ?)", (chunk.id, " ".join(terms(chunk.text))))
    connection.execute("DELETE FROM pending WHERE id = ?", (chunk.id,))


def drop(connection: sqlite3.Connection, source: str) -> None:
    connection.execute("INSERT INTO unindexed (id) SELECT id FROM chunks WHERE source = ?", (source,))
    connection.execute("INSERT OR IGNORE INTO pending SELECT id, digest FROM chunks WHERE source = ?", (source,))
    connection.execute("DELETE FROM chunks WHERE source = ?", (source,))
    connection.execute("DELETE FROM documents WHERE source = ?", (source,))


def drop_chunk(connection: sqlite3.Connection, id_: str) -> None:
    for (source,) in connection.execute("SELECT source FROM chunks WHERE id = ?", (id_,)).fetchall():
        connection.execute("INSERT INTO unindexed (id) VALUES (?)", (id_,))
        connection.execute("INSERT OR IGNORE INTO pending SELECT id, digest FROM chunks WHERE id = ?", (id_,))
        connection.execute("DELETE FROM chunks WHERE id = ?", (id_,))
        connection.execute("UPDATE documents SET content_hash = '', chunks = chunks - 1 WHERE source = ?", (source,))
        read_again(connection, source)
        connection.execute("DELETE FROM documents WHERE source = ? AND chunks = 0", (source,))


def read_again(connection: sqlite3.Connection, source: str) -> None:
    """Let a document's file no longer count as read to its end, or as one that is not to be tried."""
    for table in ("files", "failures"):
        query = f"DELETE FROM {table} WHERE file = (SELECT file FROM documents WHERE source = ?)"
        connection.execute(query, (source,))


def forget_file(connection: sqlite3.Connection, file: str, kept: Collection[str]) -> None:
    for (source,) in connection.execute("SELECT source FROM documents WHERE file = ?", (file,)).fetchall():
        if source not in kept:
            drop(connection, source)
    for table in ("files", "failures"):
        connection.execute(f"DELETE FROM {table} WHERE file = ?", (file,))
