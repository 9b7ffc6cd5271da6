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
    monkeypatch.setattr(store_module, "UNWRITTEN_AFTER_RUN", 30)
    knowledge_base.add_texts(TEXTS)
    return knowledge_base


def test_chroma_never_writes_the_index_of_its_own_accord(knowledge_base) -> None:
    assert threshold(knowledge_base) == NEVER


def test_a_run_of_many_rows_ends_with_the_index_written(written, store) -> None:
    assert are_in_files(written, store)
    assert written.journal.unwritten() == 0
    assert threshold(written) == NEVER


def test_rows_of_small_runs_add_up_and_deletes_count(written, store) -> None:
    written.add_texts(["一", "二"], ids=["1", "2"])
    assert not are_in_files(written, store)
    written.delete(["1"])
    assert written.journal.unwritten() == 3
    assert [one.id for one in written.similarity_search("二", k=1)] == ["2"]


@pytest.mark.parametrize("limit", [1, 100])
def test_within_a_run_it_is_written_when_enough_rows_wait(knowledge_base, store, monkeypatch, limit) -> None:
    monkeypatch.setattr("ingest.writer.LEAST_UNWRITTEN", limit)
    monkeypatch.setattr("ingest.vector_store.BATCH", 10)
    writes, write = [], index.write
    monkeypatch.setattr(index, "write", lambda *arguments: writes.append(1) or write(*arguments))
    knowledge_base.add_texts(TEXTS)
    assert len(writes) == (3 if limit == 1 else 0)
    assert len(knowledge_base.similarity_search("number", k=40)) == 30


def test_a_store_from_before_is_settled_by_whoever_opens_it(written, opened, embedder) -> None:
    index._set_threshold(written.collection, 1000)
    again = opened(embedder)
    assert threshold(again) == NEVER
    assert len(again.similarity_search("number", k=40)) == 30


def test_a_writer_killed_while_it_writes_the_index_leaves_it_to_the_next_opener(
    written, opened, embedder, store, monkeypatch
) -> None:
    written.add_texts(["没有写的", "another", "a third"], ids=["last", "2", "3"])
    with monkeypatch.context() as patch:
        patch.setattr(index, "_settled", lambda *rest: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            written.write_index()
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
        assert len(reader.similarity_search("新的", k=40)) == 30
    assert reader.similarity_search("新的", k=40)[0].id == "new"
