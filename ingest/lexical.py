"""The lexical index: words of chunks in SQLite's full-text search, with Chinese, Japanese and Korean cut into terms."""

import logging
import re
import sqlite3
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

# The terms come cut already, so SQLite's tokenizer must only split at blanks: "ascii" keeps all of non-ASCII together.
SCHEMA = """CREATE VIRTUAL TABLE IF NOT EXISTS lexical USING fts5(terms, tokenize="ascii tokenchars '_.-+#'")"""
VERSION = "1"
"""Raise it when `terms` gives other terms: an index of another version is made anew."""
SHADOWS = ("data", "idx", "content", "docsize", "config")
HAN, KANA, HANGUL = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff々〇", "\u3040-\u30ff", "\u1100-\u11ff\uac00-\ud7af"
RUN = re.compile(rf"(?P<han>[{HAN}]+)|(?P<syllables>[{KANA}ー]+|[{HANGUL}]+)|(?P<word>[^\W{HAN}{KANA}{HANGUL}]+"
                 rf"(?:[_.\-+#]+[^\W{HAN}{KANA}{HANGUL}]+)*(?:\+\+|#)?)")  # fmt: skip
PART = re.compile(r"[^\W\d_]+|\d+")
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
MAX_TERM = 100
"""Characters: longer runs are base64 or the like, which nobody asks for."""


def terms(text: str) -> list[str]:
    """The terms by which `text` is found, in its order: lower-case, compatibility forms folded (NFKC).

    An identifier gives itself and its parts (`maxTokens` → maxtokens, max, tokens), Chinese gives words and the words
    inside them, kana and hangul give pairs of characters.
    """
    return [term for run in RUN.finditer(unicodedata.normalize("NFKC", text)) for term in _of_run(run)]


def _of_run(run: re.Match[str]) -> Iterable[str]:
    if run["han"]:
        return _segmenter().cut_for_search(run["han"], HMM=False)
    if run["syllables"]:
        return _pairs(run["syllables"])
    return _of_word(run["word"][:MAX_TERM])


def _pairs(syllables: str) -> list[str]:
    return [syllables[index : index + 2] for index in range(max(1, len(syllables) - 1))]


def _of_word(word: str) -> Iterator[str]:
    yield word.lower()
    parts = [part for piece in CAMEL.sub(" ", word).split() for part in PART.findall(piece)]
    if len(parts) > 1:
        yield from (part.lower() for part in parts)


@cache
def _segmenter() -> Any:
    """A jieba dictionary of our own: its default one logs to stderr and keeps its cache in a folder that all share."""
    from llm.models import default_cache

    with warnings.catch_warnings(action="ignore"):  # it imports pkg_resources
        import jieba

    jieba.setLogLevel(logging.CRITICAL)
    folder = default_cache() / "jieba"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    segmenter = jieba.Tokenizer()
    segmenter.tmp_dir = str(folder)
    return segmenter


def add(connection: sqlite3.Connection, rowid: int, text: str) -> None:
    """Index a chunk's text under its row in `chunks`."""
    connection.execute("INSERT INTO lexical (rowid, terms) VALUES (?, ?)", (rowid, " ".join(terms(text))))


def remove(connection: sqlite3.Connection, rowid: int) -> None:
    """Take a chunk out of the index."""
    connection.execute("DELETE FROM lexical WHERE rowid = ?", (rowid,))


def is_behind(connection: sqlite3.Connection) -> bool:
    """Whether the index cannot be read, was made of other terms, or lacks chunks; looks into two of them only."""
    try:
        made = connection.execute("SELECT value FROM about WHERE name = 'lexical'").fetchone()
        entries = connection.execute("SELECT count(*) FROM lexical_docsize").fetchone()
        chunks = connection.execute("SELECT count(*) FROM chunks").fetchone()
        ends = connection.execute("SELECT min(id), max(id) FROM lexical_content").fetchone()
        return made != (VERSION,) or entries != chunks or not all(_finds(connection, rowid) for rowid in ends)
    except sqlite3.DatabaseError:
        return True


def _finds(connection: sqlite3.Connection, rowid: int | None) -> bool:
    """Whether a chunk is found by its own first term."""
    row = connection.execute("SELECT c0 FROM lexical_content WHERE id = ?", (rowid,)).fetchone()
    if not row or not row[0]:
        return True
    query = "SELECT 1 FROM lexical WHERE lexical MATCH ? AND rowid = ?"
    return connection.execute(query, (f'"{row[0].split(" ", 1)[0]}"', rowid)).fetchone() is not None


def start_over(connection: sqlite3.Connection) -> None:
    """Put an empty index in the place of this one, whatever its state."""
    try:
        connection.execute("DROP TABLE IF EXISTS lexical")
    except sqlite3.DatabaseError:  # SQLite drops no index that it cannot open
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("DELETE FROM sqlite_schema WHERE name = 'lexical'")
        connection.execute("PRAGMA writable_schema = RESET")
    for shadow in SHADOWS:
        connection.execute(f"DROP TABLE IF EXISTS lexical_{shadow}")
    connection.execute(SCHEMA)
    connection.execute("INSERT OR REPLACE INTO about VALUES ('lexical', ?)", (VERSION,))


def search(connection: sqlite3.Connection, query: str, k: int) -> list[tuple[str, float]]:
    """The `k` best chunks that hold any of the query's terms: id and BM25 score, higher is better, best first.

    A query without a term, such as punctuation, finds nothing.
    """
    wanted = " OR ".join(f'"{term}"' for term in dict.fromkeys(terms(query)))
    if not wanted:
        return []
    rows = connection.execute(
        "SELECT chunks.id, -bm25(lexical) FROM lexical JOIN chunks ON chunks.rowid = lexical.rowid"
        " WHERE lexical MATCH ? ORDER BY bm25(lexical), chunks.id LIMIT ?",
        (wanted, k),
    )
    return rows.fetchall()
