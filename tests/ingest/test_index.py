from pathlib import Path

import pytest

from ingest import index
from ingest import store as store_module
from ingest.collection import NEVER
from ingest.store import KnowledgeBase

TEXTS = [f"number {number} of 第{number}" for number in range(30)]


def threshold(knowledge_base: KnowledgeBase) -> int:
    collection = knowledge_base._client.get_collection(knowledge_base.collection.name, embedding_function=None)
    return collection.configuration_json["hnsw"]["sync_threshold"]


def are_in_files(knowledge_base: KnowledgeBase, store: Path) -> bool:
    """Whether the index's own list of ids, which is written with it, has all chunks."""
    content = b"".join(file.read_bytes() for file in (store / "chroma").glob("*/index_metadata.pickle"))
    return all(id_.encode() in content for id_ in knowledge_base.journal.ids())


@pytest.fixture
def written(knowledge_base, monkeypatch) -> KnowledgeBase:
    monkeypatch.setattr(store_module, "LEAST_ROWS", 15)
    knowledge_base.add_texts(["第一"], ids=["first"])
    knowledge_base.add_texts(TEXTS)
    return knowledge_base


def test_chroma_never_writes_the_index_of_its_own_accord(knowledge_base) -> None:
    assert threshold(knowledge_base) == NEVER


def test_the_writer_writes_the_index_after_many_rows(written, store) -> None:
    assert are_in_files(written, store)
    assert written.journal.unwritten() == 30
    assert threshold(written) == NEVER


@pytest.mark.parametrize(("rows", "alone"), [(20, 3), (2000, 1)])
def test_the_writer_is_alone_where_it_makes_or_may_write_the_files(knowledge_base, monkeypatch, rows, alone) -> None:
    monkeypatch.setattr(store_module, "LEAST_ROWS", rows)
    monkeypatch.setattr("ingest.vector_store.BATCH", 10)
    taken, lock = [], index.index_lock
    changing = store_module.index

    def counted(folder, name, *, exclusive, wait=True):
        taken.append(exclusive)
        return lock(folder, name, exclusive=exclusive, wait=wait)

    knowledge_base._load(for_writing=True)
    knowledge_base._wrote_last = True
    monkeypatch.setattr(changing, "index_lock", counted)
    knowledge_base.add_texts(TEXTS)
    # One more to load for writing, once there are rows.
    assert taken.count(True) == alone + 1
    assert len(knowledge_base.similarity_search("number", k=40)) == 30


def test_small_runs_and_deletes_add_up(written, store) -> None:
    before = written.journal.unwritten()
    written.add_texts(["一", "二"], ids=["1", "2"])
    written.delete(["1"])
    assert written.journal.unwritten() <= before + 3
    assert [one.id for one in written.similarity_search("二", k=1)] == ["2"]


def test_a_store_from_before_is_settled_by_whoever_opens_it(written, opened, embedder) -> None:
    index.set_threshold(written.collection, 1000)
    again = opened(embedder)
    assert threshold(again) == NEVER
    assert len(again.similarity_search("number", k=40)) == 31


def test_a_writer_killed_with_a_low_threshold_leaves_the_files_to_the_next_opener(
    written, opened, embedder, store, monkeypatch
) -> None:
    written.add_texts(["没有写的", "another", "a third"], ids=["last", "2", "3"])
    with monkeypatch.context() as patch:
        patch.setattr(index, "_touched", lambda *rest: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            index.load_for_writing(store, "team", written.collection.name, rows=2, unwritten=0)
    assert threshold(written) == 2
    again = opened(embedder)
    assert threshold(again) == NEVER
    assert are_in_files(again, store)
    assert again.similarity_search("没有写的", k=1)[0].id == "last"


def test_while_the_index_is_written_readers_answer_with_what_they_have(
    written, opened, embedder, store, monkeypatch
) -> None:
    monkeypatch.setattr(store_module, "REOPEN_SECONDS", 0)
    reader = opened(embedder)
    written.add_texts(["新的"], ids=["new"])
    reader._pause = 0
    with index.index_lock(store, "team", exclusive=True):
        assert len(reader.similarity_search("新的", k=40)) == 31
    assert reader.similarity_search("新的", k=40)[0].id == "new"
