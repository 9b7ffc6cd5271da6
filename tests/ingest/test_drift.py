"""Chroma's folder or the journal restored from a backup, or rows changed behind our back."""

import shutil
from pathlib import Path

import pytest

from ingest import recovery
from ingest.collection import journal_files, journal_path, open_chroma
from ingest.pipeline import ingest
from ingest.store import KnowledgeBase


@pytest.fixture
def filled(knowledge_base: KnowledgeBase, folder: Path) -> KnowledgeBase:
    ingest(folder, knowledge_base)
    knowledge_base.add_texts(["没有文件的文本", "nothing about it"], ids=["一", "2"])
    return knowledge_base


def restore(store: Path, backup: Path, *, chroma: bool) -> None:
    """Put one of the two back."""
    if chroma:
        shutil.rmtree(store / "chroma")
        shutil.copytree(backup / "chroma", store / "chroma")
        return
    path = journal_path(store, "team")
    for file in journal_files(path):
        file.unlink(missing_ok=True)
    for file in journal_files(journal_path(backup, "team")):
        if file.exists():
            shutil.copy(file, path.parent)


def delete_behind_its_back(store: Path, *sources: str | None) -> None:
    """Another client of Chroma's takes chunks out; None: those of added texts."""
    collection = open_chroma(store).get_collection("team", embedding_function=None)
    got = collection.get(include=["metadatas"])
    pairs = zip(got["ids"], got["metadatas"], strict=True)
    collection.delete(ids=[id_ for id_, about in pairs if about.get("source") in sources])


def check(knowledge_base: KnowledgeBase, sources: list[str]) -> None:
    """Both sides hold the same, and every chunk is found by its own text in both legs."""
    assert [document.source for document in knowledge_base.documents()] == sources
    ids = set(knowledge_base.journal.ids())
    assert set(knowledge_base.ask(lambda collection: collection.get(include=[]))["ids"]) == ids
    assert knowledge_base.journal.pending() == []
    for id_, document in knowledge_base.stored(ids).items():
        assert knowledge_base.dense(knowledge_base.embedder.embed_query(document.page_content), 1)[0][0] == id_
        assert knowledge_base.lexical(document.page_content, 1)[0][0] == id_


def test_deleted_rows_of_files_are_read_again_and_nothing_else_is_embedded(
    filled, opened, embedder, folder, store, caplog
) -> None:
    delete_behind_its_back(store, "leave.md", "guide.txt")
    embedder.embedded = 0
    again = opened(embedder)
    report = ingest(folder, again)
    assert (report.added, report.unchanged, report.failed) == (("guide.txt", "leave.md"), 1, ())
    assert embedder.embedded == 2
    assert "2 chunks are missing in Chroma, 0 are unknown" in caplog.text
    check(again, ["added://2", "added://一", "guide.txt", "leave.md", "travel.txt"])


def test_added_texts_that_are_lost_are_reported_by_name_once(filled, opened, embedder, folder, store) -> None:
    delete_behind_its_back(store, None)
    embedder.embedded = 0
    again = opened(embedder)
    report = ingest(folder, again)
    assert [source for source, _ in report.failed] == ["added://2", "added://一"]
    assert "add it again" in report.failed[0][1]
    assert (report.exit_status, report.unchanged, embedder.embedded) == (1, 3, 0)
    assert ingest(folder, opened(embedder)).exit_status == 0
    check(again, ["guide.txt", "leave.md", "travel.txt"])


def test_rows_of_another_program_are_swept(filled, opened, embedder, folder, store) -> None:
    collection = open_chroma(store).get_collection("team", embedding_function=None)
    vector = embedder.embed_query("annual leave")
    collection.add(ids=["foreign", "bare"], embeddings=[vector] * 2, documents=["annual leave", "x"])
    again = opened(embedder)
    assert ingest(folder, again).unchanged == 3
    check(again, ["added://2", "added://一", "guide.txt", "leave.md", "travel.txt"])


@pytest.mark.parametrize("same_count", [True, False])
def test_chroma_from_a_backup(filled, opened, embedder, folder, store, tmp_path, same_count) -> None:
    shutil.copytree(store, tmp_path / "backup")
    (folder / "leave.md").write_text("# Leave\n\nThirty days.\n", encoding="utf-8")
    if not same_count:
        (folder / "新.txt").write_text("新的文件", encoding="utf-8")
    ingest(folder, filled)
    restore(store, tmp_path / "backup", chroma=True)
    embedder.embedded = 0
    again = opened(embedder)
    report = ingest(folder, again)
    assert report.failed == ()
    assert embedder.embedded == (1 if same_count else 2)
    new = [] if same_count else ["新.txt"]
    check(again, ["added://2", "added://一", "guide.txt", "leave.md", "travel.txt", *new])
    assert ingest(folder, opened(embedder)).unchanged == 3 + len(new)


def test_what_was_deleted_does_not_come_back_with_chromas_backup(filled, opened, embedder, folder, store, tmp_path):
    shutil.copytree(store, tmp_path / "backup")
    filled.delete(["一"])
    restore(store, tmp_path / "backup", chroma=True)
    again = opened(embedder)
    ingest(folder, again)
    check(again, ["added://2", "guide.txt", "leave.md", "travel.txt"])


@pytest.mark.parametrize("first", ["an ingest", "an added text"])
def test_a_journal_from_a_backup(filled, opened, embedder, folder, store, tmp_path, first) -> None:
    shutil.copytree(store, tmp_path / "backup")
    (folder / "leave.md").write_text("# Leave\n\nThirty days.\n", encoding="utf-8")
    (folder / "新.txt").write_text("新的文件", encoding="utf-8")
    ingest(folder, filled)
    filled.add_texts(["后来的文本"], ids=["后"])
    filled.delete(["2"])
    restore(store, tmp_path / "backup", chroma=False)
    embedder.embedded = 0
    again = opened(embedder)
    if first == "an added text":
        again.add_texts(["后来的文本"], ids=["后"])
    report = ingest(folder, again)
    assert embedder.embedded == 0
    assert report.removed == ()
    check(again, ["added://一", "added://后", "guide.txt", "leave.md", "travel.txt", "新.txt"])


def test_chromas_folder_lost_as_a_whole_is_filled_again(filled, opened, embedder, folder, store) -> None:
    filled.close()
    shutil.rmtree(store / "chroma")
    again = opened(embedder)
    report = ingest(folder, again)
    assert [source for source, _ in report.failed] == ["added://2", "added://一"]
    check(again, ["guide.txt", "leave.md", "travel.txt"])


def test_both_restored_together_agree(filled, opened, embedder, folder, store, tmp_path, caplog) -> None:
    shutil.copytree(store, tmp_path / "backup")
    filled.add_texts(["后来的文本"])
    restore(store, tmp_path / "backup", chroma=True)
    restore(store, tmp_path / "backup", chroma=False)
    assert ingest(folder, opened(embedder)).unchanged == 3
    assert "differ" not in caplog.text


def test_a_part_of_a_long_text_that_is_lost_leaves_the_rest(knowledge_base, opened, embedder, folder, store) -> None:
    ingest(folder, knowledge_base)
    knowledge_base.add_texts(["。".join(f"第{number}句很长的话" for number in range(40))], ids=["长"])
    ids = list(knowledge_base.journal.ids("added://长"))
    open_chroma(store).get_collection("team", embedding_function=None).delete(ids=ids[1:2])
    again = opened(embedder)
    assert [source for source, _ in ingest(folder, again).failed] == ["added://长"]
    assert list(again.journal.ids("added://长")) == [ids[0], *ids[2:]]


def test_without_a_difference_nothing_is_compared_and_an_unchanged_run_writes_nothing(
    filled, opened, embedder, folder, monkeypatch
) -> None:
    monkeypatch.setattr(recovery, "_take_in", lambda *_, **__: pytest.fail("compared"))
    again = opened(embedder)
    numbers = again.journal.session(), again.journal.generation()
    assert ingest(folder, again).unchanged == 3
    assert (again.journal.session(), again.journal.generation()) == numbers
    again.add_texts(["后来的文本"])
    assert again.journal.session() == recovery.session_of(again.collection) > numbers[0]


def test_a_store_from_before_sessions_is_compared_by_its_counts(filled, opened, embedder, folder, monkeypatch) -> None:
    filled.collection.modify(metadata={k: v for k, v in filled.collection.metadata.items() if k != "session"})
    with filled.journal._transaction(changing=False) as connection:
        connection.execute("DELETE FROM about WHERE name = 'session'")
    with monkeypatch.context() as patch:
        patch.setattr(recovery, "_take_in", lambda *_, **__: pytest.fail("compared"))
        assert ingest(folder, opened(embedder)).unchanged == 3
