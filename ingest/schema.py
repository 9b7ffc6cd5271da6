"""The tables of a knowledge base's SQLite file, and how an older file gets them."""

import sqlite3
from pathlib import Path

VERSION = 3
NAMES = ("documents", "chunks", "pending", "generation", "files", "failures", "about", "unindexed")
TABLES = (
    """CREATE TABLE IF NOT EXISTS documents (
        source TEXT PRIMARY KEY, content_hash TEXT NOT NULL, chunks INTEGER NOT NULL, problems TEXT NOT NULL,
        file TEXT)""",
    """CREATE TABLE IF NOT EXISTS chunks (
        rowid INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, digest BLOB NOT NULL,
        source TEXT NOT NULL REFERENCES documents (source))""",
    "CREATE INDEX IF NOT EXISTS chunks_source ON chunks (source)",
    "CREATE INDEX IF NOT EXISTS chunks_digest ON chunks (digest)",
    "CREATE TABLE IF NOT EXISTS pending (id TEXT PRIMARY KEY, digest BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS generation (number INTEGER NOT NULL)",
    "INSERT INTO generation SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM generation)",
    "CREATE TABLE IF NOT EXISTS files (file TEXT PRIMARY KEY, content_hash TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS failures (
        file TEXT PRIMARY KEY, content_hash TEXT NOT NULL, limits TEXT NOT NULL, reason TEXT NOT NULL)""",
    "CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS unindexed (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, terms TEXT)",
)
"""`pending`: ids that may be in Chroma and belong to no document, being written or being dropped. `digest`: a hash of
the chunk's text. `generation` rises with every change, so that a reader sees that it is behind. `documents.file`: the
file a document came from, a container or the document itself; null where no file was. `files`: those that were read
to their end. `failures`: those that are not to be tried again as they are, within the same limits. `about`: `live`, the
Chroma collection that answers (none: the knowledge base is deleted or not yet made), `last_run`, `lexical`, the mark of
the lexical index, `unwritten`: rows in Chroma's log only, `session`: a number that Chroma has too. `unindexed`: the
changes that the lexical index has yet to see, in their order; without terms, a chunk that is gone."""
FROM_1 = (
    "ALTER TABLE documents ADD COLUMN file TEXT",
    "UPDATE documents SET file = source",
    "CREATE TABLE files (file TEXT PRIMARY KEY, content_hash TEXT NOT NULL)",
    "INSERT INTO files SELECT source, content_hash FROM documents",
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
)
FTS5_SHADOWS = ("data", "idx", "content", "docsize", "config")
LATER = ("CREATE INDEX IF NOT EXISTS documents_file ON documents (file)",)


def migrate(connection: sqlite3.Connection) -> None:
    """Give the file today's tables. What is in them stays."""
    if _version(connection) == VERSION:  # the usual case, which must not wait for a writer
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _version(connection) != VERSION:
            is_first = _is_first_version(connection)
            _drop_fts5(connection)
            for statement in (*(FROM_1 if is_first else ()), *TABLES, *LATER, f"PRAGMA user_version = {VERSION}"):
                connection.execute(statement)
            if is_first:  # it had the one collection that is called as its file
                file = connection.execute("PRAGMA database_list").fetchone()[2]
                connection.execute("INSERT INTO about VALUES ('live', ?)", (Path(file).stem,))
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _version(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]


def _is_first_version(connection: sqlite3.Connection) -> bool:
    columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(documents)")]
    return bool(columns) and "file" not in columns


def _drop_fts5(connection: sqlite3.Connection) -> None:
    """Until version 2 the lexical index was a table here, with a row of its own in `about`."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name LIKE 'lexical%'").fetchone():
        return
    try:
        connection.execute("DROP TABLE IF EXISTS lexical")
    except sqlite3.DatabaseError:  # SQLite drops no index that it cannot open
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("DELETE FROM sqlite_schema WHERE name = 'lexical'")
        connection.execute("PRAGMA writable_schema = RESET")
    for shadow in FTS5_SHADOWS:
        connection.execute(f"DROP TABLE IF EXISTS lexical_{shadow}")
