import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ingest.collection import journal_path
from ingest.journal import Journal
from ingest.lock import AlreadyWriting
from ingest.pipeline import ingest
from ingest.store import KnowledgeBase

DAMAGE = {
    "missing": ["DROP TABLE lexical"],
    "without its data": ["DROP TABLE lexical_data"],
    "without its configuration": ["DROP TABLE lexical_config"],
    "emptied": ["UPDATE lexical_data SET block = x'0badc0de'"],
    "corrupt": ["UPDATE lexical_data SET block = x'ffffffffffffffffffff' WHERE id > 10"],
    "behind": ["DELETE FROM lexical WHERE rowid IN (SELECT min(rowid) FROM chunks)"],
    "of other terms": ["UPDATE about SET value = '0' WHERE name = 'lexical'", "UPDATE lexical SET terms = 'other'"],
}


@pytest.fixture
def damage(knowledge_base: KnowledgeBase, folder: Path, store: Path) -> Callable[[str], None]:
    """Fills the knowledge base, then damages its lexical index behind its back."""
    ingest(folder, knowledge_base)
    knowledge_base.add_texts(["没有文件的文本"])

    def do(kind: str) -> None:
        with closing(sqlite3.connect(journal_path(store, "team"))) as connection:
            for statement in DAMAGE[kind]:
                connection.execute(statement)
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


@pytest.mark.parametrize("kind", ["missing", "without its data", "corrupt"])
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
        damage("missing")
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
