import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ingest.collection import journal_path, lexical_path
from ingest.journal import Journal
from ingest.knowledge_bases import list_knowledge_bases
from ingest.lexical import LexicalIndex, Mark
from ingest.lock import AlreadyWriting
from ingest.pipeline import ingest
from ingest.store import KnowledgeBase

Damage = Callable[[Path, sqlite3.Connection], object]


def rewritten(pattern: str, content: bytes) -> Damage:
    """Other bytes in those files; a reader keeps the ones that it has open."""

    def do(index: Path, journal: sqlite3.Connection) -> None:
        for path in list(index.rglob(pattern)):
            path.unlink()
            path.write_bytes(content)

    return do


def changed(statement: str) -> Damage:
    return lambda index, journal: journal.execute(statement)


DAMAGE: dict[str, Damage] = {
    "missing": lambda index, journal: shutil.rmtree(index),
    "without its list of files": lambda index, journal: [path.unlink() for path in index.rglob("meta.json")],
    "with another list of files": rewritten("meta.json", b"{}"),
    "without its terms": lambda index, journal: [path.unlink() for path in index.rglob("*.term")],
    "emptied": rewritten("*.idx", b""),
    "corrupt": rewritten("*.idx", b"\xff" * 1000),
    "behind": lambda index, journal: takes_out_one(index, journal),
    "of other terms": changed("UPDATE about SET value = '0' || substr(value, 2) WHERE name = 'lexical'"),
    "not noted": changed("DELETE FROM about WHERE name = 'lexical'"),
    "noted further on": changed("UPDATE about SET value = value || '0' WHERE name = 'lexical'"),
}


def takes_out_one(index: Path, journal: sqlite3.Connection) -> None:
    (mark,) = journal.execute("SELECT value FROM about WHERE name = 'lexical'").fetchone()
    (id_,) = journal.execute("SELECT min(id) FROM chunks").fetchone()
    LexicalIndex(index).write(Mark.read(mark), [id_], ())


@pytest.fixture
def damage(knowledge_base: KnowledgeBase, folder: Path, store: Path) -> Callable[[str], None]:
    """Fills the knowledge base, then damages its lexical index behind its back."""
    ingest(folder, knowledge_base)
    knowledge_base.add_texts(["没有文件的文本"])

    def do(kind: str) -> None:
        path = journal_path(store, "team")
        with closing(sqlite3.connect(path)) as connection:
            DAMAGE[kind](lexical_path(path), connection)
            connection.commit()

    return do


def answers(knowledge_base: KnowledgeBase) -> list:
    return [knowledge_base.lexical(query, 9) for query in ("annual leave", "年假", "没有文件", "manager travel")]


@pytest.mark.parametrize("kind", DAMAGE)
def test_whoever_opens_a_damaged_index_makes_it_anew_from_the_chunks(damage, knowledge_base, opened, embedder, kind):
    right = answers(knowledge_base)
    assert all(right)
    damage(kind)
    assert answers(opened(embedder)) == right


@pytest.mark.parametrize("kind", ["not noted", "of other terms", "noted further on"])
def test_a_question_that_finds_it_damaged_mends_it(damage, knowledge_base, kind) -> None:
    right = answers(knowledge_base)
    damage(kind)
    assert answers(knowledge_base) == right


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_writer_mends_it_before_it_writes(damage, knowledge_base, opened, embedder, folder, kind) -> None:
    reader = opened(embedder)
    right = answers(knowledge_base)
    damage(kind)
    assert ingest(folder, reader).unchanged == 3
    assert answers(knowledge_base) == right


def test_while_another_writes_a_damaged_index_is_left_to_it(damage, knowledge_base, opened, embedder) -> None:
    other = opened(embedder)
    with knowledge_base.writing():
        damage("not noted")
        with pytest.raises(AlreadyWriting):
            other.lexical("leave", 1)


def test_mending_may_be_killed(damage, knowledge_base, opened, embedder, monkeypatch) -> None:
    right = answers(knowledge_base)
    damage("missing")

    def die(self, texts) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "rebuild_lexical", die)
        with pytest.raises(KeyboardInterrupt):
            opened(embedder)
    assert answers(opened(embedder)) == right


VERSION_2 = """
DROP TABLE unindexed;
UPDATE about SET value = '1' WHERE name = 'lexical';
PRAGMA user_version = 2;
CREATE VIRTUAL TABLE lexical USING fts5(terms, tokenize="ascii tokenchars '_.-+#'");
INSERT INTO lexical (rowid, terms) SELECT rowid, 'leave' FROM chunks;
"""


@pytest.mark.parametrize("then", ["", "DROP TABLE lexical_data;", "DROP TABLE lexical;"])
def test_a_table_of_an_older_version_gives_way_to_an_index(
    damage, knowledge_base, opened, embedder, store, then
) -> None:
    right = answers(knowledge_base)
    knowledge_base.close()
    path = journal_path(store, "team")
    shutil.rmtree(lexical_path(path))
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(VERSION_2 + then)
    assert answers(opened(embedder)) == right
    with closing(sqlite3.connect(path)) as connection:
        assert not connection.execute("SELECT name FROM sqlite_schema WHERE name LIKE 'lexical%'").fetchall()


def test_a_table_that_was_made_before_an_index_was_is_dropped_by_whoever_only_lists(
    damage, knowledge_base, store
) -> None:
    knowledge_base.close()
    with closing(sqlite3.connect(journal_path(store, "team"))) as connection:
        connection.executescript(VERSION_2)
    assert [summary.chunks for summary in list_knowledge_bases(store)] == [4]
