"""A journal that is lost or broken is made anew from Chroma, and nothing is embedded again for it."""

import shutil
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ingest import knowledge_bases, manage, recovery
from ingest.collection import collection_name, journal_files, journal_path
from ingest.imprint import ADDED
from ingest.journal import Journal
from ingest.knowledge_bases import UnknownKnowledgeBase, list_knowledge_bases
from ingest.lock import AlreadyWriting
from ingest.metadata import OF_A_DOCUMENT
from ingest.pipeline import ingest
from ingest.reindex import reindex
from ingest.store import KnowledgeBase
from tests.fakes import WordCountEmbedder
from tests.ingest.pdf import pdf

LONG = "。".join(f"第{number}句很长的话" for number in range(40))


def lose(path: Path) -> None:
    for file in journal_files(path):
        file.unlink(missing_ok=True)


def empty(path: Path) -> None:
    lose(path)
    path.touch()


def scribble(path: Path) -> None:
    path.write_bytes("这不是数据库".encode() * 1000)


def damage_a_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        page = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'chunks'").fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)


def drop_a_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE about")


BREAKS = [lose, empty, scribble, damage_a_table, drop_a_table]


@pytest.fixture
def filled(knowledge_base: KnowledgeBase, folder: Path, store: Path) -> Callable[[], Path]:
    """Fills the knowledge base; called, closes it and gives its journal's path."""
    with zipfile.ZipFile(folder / "档案.zip", "w") as archive:
        archive.writestr("甲.txt", "归档的文件")
        archive.writestr("scan.pdf", pdf("Cover page", ""))
    (folder / "long.txt").write_text("\n\n".join(f"Paragraph {n} of a long file." for n in range(40)), encoding="utf-8")
    ingest(folder, knowledge_base)
    about = {"source": "手册", "团队": "销售"}
    knowledge_base.add_texts(["没有文件的文本", LONG, "nothing about it"], [about, {}, {}], ids=["一", "长", "3"])

    def close() -> Path:
        knowledge_base.close()
        return journal_path(store, "team")

    return close


def everything(knowledge_base: KnowledgeBase) -> tuple:
    """All that a user sees."""
    documents = [
        (one.source, one.content_hash, one.chunks, one.problems, one.file) for one in knowledge_base.documents()
    ]
    chunks = {one.source: list(knowledge_base.journal.ids(one.source)) for one in knowledge_base.documents()}
    answers = [
        knowledge_base.lexical(query, 9) for query in ("annual leave", "年假", "没有文件", "paragraph 7", "很长的话")
    ]
    stored = knowledge_base.stored(id_ for ids in chunks.values() for id_ in ids)
    return documents, chunks, stored, answers, knowledge_base.count()


@pytest.mark.parametrize("break_it", BREAKS)
def test_all_documents_are_back_as_they_were_and_nothing_is_embedded(
    filled, knowledge_base, opened, embedder, folder, break_it, caplog
) -> None:
    before, embedded = everything(knowledge_base), embedder.embedded
    break_it(filled())
    again = opened(embedder)
    assert everything(again) == before
    assert len([record for record in caplog.records if "made anew from Chroma" in record.message]) == 1
    report = ingest(folder, again)
    assert (report.unchanged, report.added, report.changed, report.removed, report.failed) == (6, (), (), (), ())
    assert everything(again) == before
    assert embedder.embedded == embedded
    assert again.journal.pending() == []
    assert again.get_by_ids(["一"])[0].metadata == {"source": "手册", "团队": "销售"}


def test_a_broken_file_is_set_aside_and_goes_with_its_knowledge_base(filled, opened, embedder, store, caplog) -> None:
    scribble(filled())
    opened(embedder)
    (aside,) = store.glob("team.sqlite3.broken-*")
    assert "这不是数据库" in aside.read_text(encoding="utf-8")
    assert aside.name in caplog.text
    knowledge_bases.delete(store, "team")
    assert not [path.name for path in store.iterdir() if path.name.startswith("team")]


@pytest.mark.parametrize("break_it", [lose, scribble])
def test_listing_and_deleting_go_on(filled, store, monkeypatch, capsys, break_it) -> None:
    monkeypatch.setenv("GROUNDWELL_STORE__PATH", str(store))
    monkeypatch.setenv("GROUNDWELL_STORE__KNOWLEDGE_BASE", "team")
    for name in ("ANONYMIZED_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "False")
    break_it(filled())
    assert [summary.name for summary in list_knowledge_bases(store)] == ["team"]
    break_it(filled())
    assert manage.main(["documents", "list"]) == 0
    assert "added://长" in capsys.readouterr().out
    break_it(filled())
    assert manage.main(["documents", "delete", "added://一", "leave.md"]) == 0
    assert manage.main(["documents", "list"]) == 0
    listed = capsys.readouterr().out
    assert "added://长" in listed and "added://一\n" not in listed.partition("documents")[2]
    break_it(filled())
    assert manage.main(["knowledge-bases", "delete", "team"]) == 0
    assert list_knowledge_bases(store) == []


@pytest.mark.parametrize("name", ["知识库 一", "x" * 200, "A.b_c"])
def test_the_name_comes_from_chroma(opened, embedder, folder, store, name) -> None:
    ingest(folder, opened(embedder, name))
    lose(journal_path(store, name))
    assert [(one.name, one.documents) for one in list_knowledge_bases(store)] == [(name, 3)]


def test_a_reader_goes_on_with_the_journal_that_another_made_anew(
    filled, knowledge_base, opened, embedder, folder, store, monkeypatch
) -> None:
    monkeypatch.setattr("ingest.store.REOPEN_SECONDS", 0)
    reader = opened(embedder)
    lose(journal_path(store, "team"))
    (folder / "新.txt").write_text("新的文件", encoding="utf-8")
    assert ingest(folder, opened(embedder)).added == ("新.txt",)
    assert reader.similarity_search("新的文件", k=1)[0].metadata["source"] == "新.txt"
    assert reader.count() == opened(embedder).count()


def test_a_writer_that_is_open_makes_a_lost_journal_anew(filled, knowledge_base, embedder, folder, store) -> None:
    before, embedded = everything(knowledge_base), embedder.embedded
    lose(journal_path(store, "team"))
    assert ingest(folder, knowledge_base).unchanged == 6
    assert (everything(knowledge_base), embedder.embedded) == (before, embedded)


def test_after_a_killed_update_the_later_version_is_meant(knowledge_base, opened, embedder, folder, store) -> None:
    ingest(folder, knowledge_base)
    (folder / "leave.md").write_text("# Leave\n\nThirty days.\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("ingest.writer.Writer.sweep", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        ingest(folder, knowledge_base)
    lose(journal_path(store, "team"))
    embedder.embedded = 0
    again = opened(embedder)
    assert again.count() == (3, 3)
    assert len(again.lexical("thirty", 5)) == 1 and not again.lexical("annual", 5)
    ingest(folder, again)
    assert again.ask(lambda collection: collection.count()) == 3
    assert embedder.embedded == 0


def test_after_a_killed_first_run_what_was_embedded_stays_so(opened, embedder, folder, store) -> None:
    (folder / "long.txt").write_text("\n\n".join(f"Paragraph {n} of a long file." for n in range(40)), encoding="utf-8")
    options = {"chunk_tokens": 16, "batch_chunks": 8, "workers": 0}
    from ingest.settings import IngestOptions

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("ingest.writer.Writer.finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        ingest(folder, opened(embedder), IngestOptions(**options))
    lose(journal_path(store, "team"))
    stored, whole = opened(embedder), opened(embedder, "whole")
    before = embedder.embedded
    there = stored.ask(lambda collection: collection.count())
    ingest(folder, whole, IngestOptions(**options))
    total, embedder.embedded = embedder.embedded - before, 0
    ingest(folder, stored, IngestOptions(**options))
    assert there > 0 and embedder.embedded <= total - there
    assert [one.source for one in stored.documents()] == [one.source for one in whole.documents()]
    assert set(stored.journal.ids()) == set(whole.journal.ids())


@pytest.mark.parametrize("lost_after", ["_copy", "set_threshold", "note", "drop_others"])
def test_the_collection_that_answers_is_never_one_that_was_being_filled(
    filled, opened, embedder, store, monkeypatch, lost_after
) -> None:
    from ingest import reindex as module

    other, place = WordCountEmbedder("other", dimension=64), module
    if lost_after == "set_threshold":
        place = module.index
    original, calls = getattr(place, lost_after), []

    def die(*arguments, **named):
        calls.append(lost_after)
        if lost_after != "drop_others" or len(calls) == 2:
            if lost_after != "drop_others":
                original(*arguments, **named)
            raise KeyboardInterrupt
        return original(*arguments, **named)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(place, lost_after, die)
        reindex(store, "team", other)
    lose(filled())
    again = opened(other if lost_after in ("note", "drop_others") else embedder)
    assert again.similarity_search("没有文件的文本", k=1)[0].id == "一"
    with again.writing():
        pass
    assert len(again._client.list_collections()) == 1


def test_a_journal_from_before_a_reindex_is_made_anew(filled, opened, embedder, folder, store) -> None:
    path = filled()
    shutil.copy(path, store / "backup")
    other = WordCountEmbedder("other", dimension=64)
    reindex(store, "team", other)
    lose(path)
    shutil.move(store / "backup", path)
    again = opened(other)
    other.embedded = 0
    assert ingest(folder, again).unchanged == 6
    assert other.embedded == 0


def test_a_store_from_before_imprints_loses_only_the_ids_of_added_texts(
    filled, knowledge_base, opened, embedder, folder
) -> None:
    got = knowledge_base.collection.get(include=["metadatas"])
    for id_, about in zip(got["ids"], got["metadatas"], strict=True):
        if about.get(OF_A_DOCUMENT):
            knowledge_base.collection.update(id_, metadatas={OF_A_DOCUMENT: None})
    embedder.embedded = 0
    lose(filled())
    again = opened(embedder)
    report = ingest(folder, again)
    assert (report.failed, report.removed, embedder.embedded) == ((), (), 0)
    assert again.journal.pending() == []
    assert again.similarity_search("没有文件的文本", k=1)[0].page_content == "没有文件的文本"
    assert sum(one.source.startswith(ADDED) for one in again.documents()) > 3
    assert ingest(folder, again).unchanged == 6


def test_a_deleted_knowledge_base_does_not_come_back(filled, store, embedder, opened, monkeypatch) -> None:
    filled()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(knowledge_bases, "drop_others", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        knowledge_bases.delete(store, "team")
    with pytest.raises(UnknownKnowledgeBase):
        opened(embedder, create=False)
    assert opened(embedder).count() == (0, 0)


def test_making_it_anew_may_be_killed(filled, opened, embedder, knowledge_base, monkeypatch) -> None:
    before = everything(knowledge_base)
    lose(filled())
    replace, left = Journal.replace, iter(range(3))

    def die(self, *arguments) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        replace(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Journal, "replace", die)
        opened(embedder)
    assert everything(opened(embedder)) == before


def test_it_is_left_to_the_one_who_writes(filled, opened, embedder, store, knowledge_base) -> None:
    with knowledge_base.writing():
        lose(journal_path(store, "team"))
        with pytest.raises(AlreadyWriting):
            opened(embedder)
    assert opened(embedder).count()[0] == 9


def test_many_chunks_in_small_batches(opened, embedder, folder, store, monkeypatch) -> None:
    monkeypatch.setattr(recovery, "BATCH", 3)
    knowledge_base = opened(embedder)
    ingest(folder, knowledge_base)
    knowledge_base.add_texts([LONG, *(f"文本{number}" for number in range(20))])
    before = everything(knowledge_base)
    lose(journal_path(store, "team"))
    assert everything(opened(embedder)) == before


def test_no_name_of_a_knowledge_base_is_taken_for_a_file_set_aside(opened, embedder, store) -> None:
    name = "team.sqlite3.broken-20260101-000000"
    assert collection_name(name) == name
    opened(embedder, name)
    scribble(journal_path(store, "team"))
    opened(embedder)
    assert len(recovery.set_aside(journal_path(store, "team"))) == 1
    knowledge_bases.delete(store, "team")
    assert [one.name for one in list_knowledge_bases(store)] == [name]
