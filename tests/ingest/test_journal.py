import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest.journal import Journal, StoredChunk, StoredDocument

FIRST_VERSION = """
CREATE TABLE documents (
    source TEXT PRIMARY KEY, content_hash TEXT NOT NULL, chunks INTEGER NOT NULL, problems TEXT NOT NULL);
CREATE TABLE chunks (
    rowid INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, digest BLOB NOT NULL,
    source TEXT NOT NULL REFERENCES documents (source));
CREATE INDEX chunks_source ON chunks (source);
CREATE INDEX chunks_digest ON chunks (digest);
CREATE TABLE pending (id TEXT PRIMARY KEY, digest BLOB NOT NULL);
CREATE TABLE generation (number INTEGER NOT NULL);
INSERT INTO generation VALUES (7);
CREATE VIRTUAL TABLE lexical USING fts5(terms, tokenize="ascii tokenchars '_.-+#'");
INSERT INTO documents VALUES ('年假.md', 'hash', 1, '[]');
INSERT INTO chunks VALUES (1, 'c1', x'00', '年假.md');
INSERT INTO lexical (rowid, terms) VALUES (1, '年 假 leave');
"""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "team.sqlite3")
    yield journal
    journal.close()


def store(journal: Journal, source: str, file: str | None) -> None:
    journal.replace(StoredDocument(source, "hash", 1, file=file), [StoredChunk(f"id {source}", b"digest", source)])


def sources(journal: Journal) -> list[str]:
    return [document.source for document in journal.documents()]


def test_a_finished_file_keeps_what_it_still_holds_and_what_failed(journal: Journal) -> None:
    for source in ("邮件.zip/a.txt", "邮件.zip/b.txt", "邮件.zip/c.txt"):
        store(journal, source, "邮件.zip")
    store(journal, "other.txt", "other.txt")
    journal.finish("邮件.zip", "hash", {"邮件.zip/a.txt", "邮件.zip/b.txt"})
    assert sources(journal) == ["other.txt", "邮件.zip/a.txt", "邮件.zip/b.txt"]
    assert journal.pending() == ["id 邮件.zip/c.txt"]
    assert journal.files() == {"邮件.zip": "hash"}


def test_a_file_that_was_not_read_to_its_end_is_no_longer_known_as_such(journal: Journal) -> None:
    journal.finish("a.zip", "old", ())
    journal.finish("a.zip", None, ())
    assert journal.files() == {}


def test_removing_a_file_leaves_what_was_added_without_one(journal: Journal) -> None:
    store(journal, "a.txt", "a.txt")
    store(journal, "added://1", None)
    journal.finish("a.txt", "hash", {"a.txt"})
    journal.remove_file("a.txt")
    assert (sources(journal), journal.files()) == (["added://1"], {})


def test_the_file_of_a_removed_document_is_read_again(journal: Journal) -> None:
    store(journal, "a.zip/a.txt", "a.zip")
    journal.finish("a.zip", "hash", {"a.zip/a.txt"})
    journal.remove("a.zip/a.txt")
    assert (sources(journal), journal.files()) == ([], {})


def test_a_file_of_the_first_version_goes_on_working(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "old.sqlite3") as connection:
        connection.executescript(FIRST_VERSION)
    connection.close()
    journal = Journal(tmp_path / "old.sqlite3")
    assert journal.documents() == [StoredDocument("年假.md", "hash", 1, (), "年假.md")]
    assert journal.files() == {"年假.md": "hash"}
    assert journal.lexical_is_behind()
    journal.rebuild_lexical([("c1", "年假 leave")])
    assert not journal.lexical_is_behind()
    assert [id_ for id_, _ in journal.search("假", 5)] == ["c1"]
    assert journal.generation() == 7
    store(journal, "b.txt", "b.txt")
    assert journal.count() == (2, 2)
    journal.close()


def test_what_the_lexical_index_has_yet_to_see_is_not_half_shown(journal: Journal) -> None:
    journal.switch("team", empty=True)
    for number in range(40):
        store(journal, f"leave {number}", None)
    assert journal.search("leave", 5) == []
    assert journal.lexical_is_behind()
    assert journal.index(check=True)
    gone, left = [[id_ for id_, _ in journal.search("leave", 40)][part] for part in (slice(0, 35), slice(35, 40))]
    for id_ in gone:
        journal.remove(id_.removeprefix("id "))
    assert [id_ for id_, _ in journal.search("leave", 3)] == left[:3]
    assert journal.index(check=True)
    assert sorted(id_ for id_, _ in journal.search("leave", 40)) == sorted(left)


def test_a_journal_sees_what_another_one_has_indexed(journal: Journal, tmp_path: Path) -> None:
    journal.switch("team", empty=True)
    reader = Journal(tmp_path / "team.sqlite3")
    for text in ("年假 leave", "病假 leave"):
        store(journal, text, None)
        journal.index()
        assert f"id {text}" in dict(reader.search(text, 5))
    journal.rebuild_lexical([(id_, id_) for id_ in list(journal.ids())])
    assert len(reader.search("leave", 5)) == 2
    journal.switch("other", empty=True)
    assert reader.search("leave", 5) == []
    reader.close()
