"""Both legs under a filter, while chunks come and go."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from chromadb.errors import ChromaError

from ingest import memory as memory_module
from ingest import search as search_module
from ingest.document import LoadedDocument
from ingest.pipeline import ingest
from ingest.prepared import PreparedDocument
from ingest.split import split
from ingest.store import KnowledgeBase
from tests.fakes import WordCountEmbedder

AUTHORS = ["Lin", "李雷", "王芳"]
FILTERS = [
    {"author": "李雷"},
    {"author": {"$ne": "李雷"}},
    {"author": {"$in": ["李雷", "王芳"]}, "year": {"$gte": 2005}},
    {"$or": [{"year": 2003}, {"author": {"$nin": ["Lin", "李雷"]}}]},
    {"tags": {"$contains": "甲"}},
    {"year": {"$gt": 2017}},
    {"author": "nobody"},
]


def about(number: int) -> dict:
    """Metadata, of which every fourth has none."""
    if number % 4 == 0:
        return {}
    return {"author": AUTHORS[number % 3], "year": 2000 + number % 20, "tags": ["甲" if number % 5 else "乙"]}


def add(knowledge_base: KnowledgeBase, numbers: range) -> None:
    texts = [f"leave number {number} 年假" + " more" * (number % 7) for number in numbers]
    knowledge_base.add_texts(texts, [about(number) for number in numbers], ids=[str(number) for number in numbers])


@pytest.fixture(params=["few", "many"])
def filled(knowledge_base, request, monkeypatch) -> KnowledgeBase:
    """With "many" no filter leaves few enough to be listed in the lexical question."""
    monkeypatch.setattr(search_module, "LISTED", 60 if request.param == "few" else 0)
    add(knowledge_base, range(60))
    return knowledge_base


def meeting(knowledge_base: KnowledgeBase, where: dict) -> set[str]:
    """What Chroma itself says."""
    from ingest.metadata import where as chroma_where

    got = knowledge_base.ask(lambda collection: collection.get(where=chroma_where(where), include=[]))
    return set(got["ids"])


def check(knowledge_base: KnowledgeBase, where: dict) -> None:
    vector, k = knowledge_base.embedder.embed_query("leave 年假 more"), 500
    wanted = meeting(knowledge_base, where)
    all_of = dict(knowledge_base.dense(vector, k))
    dense = knowledge_base.dense(vector, k, where)
    assert {id_ for id_, _ in dense} == wanted
    assert dict(dense) == pytest.approx({id_: all_of[id_] for id_ in wanted}, abs=1e-4)
    assert [similarity for _, similarity in dense] == sorted((one for _, one in dense), reverse=True)
    best = knowledge_base.dense(vector, 3, where)
    assert [one for _, one in best] == pytest.approx([one for _, one in dense[:3]], abs=1e-4)
    lexical = knowledge_base.lexical("leave more", k)
    assert knowledge_base.lexical("leave more", k, where) == [hit for hit in lexical if hit[0] in wanted]
    first = knowledge_base.lexical("leave more", 2, where)  # of equal scores any may be among the first
    assert [score for _, score in first] == [score for id_, score in lexical if id_ in wanted][:2]
    assert {id_ for id_, _ in first} <= wanted


@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_both_legs_find_what_chroma_says_meets_a_filter(filled, where) -> None:
    check(filled, where)
    assert filled._resident(begin=False) is not None


@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_they_do_so_while_the_chunks_are_not_yet_in_memory(filled, where, monkeypatch) -> None:
    monkeypatch.setattr(filled, "_resident", lambda begin=True: None)
    check(filled, where)


@pytest.mark.parametrize(
    "where", [{"author": {"$gt": "a"}}, {"author": {"$in": []}}, {"author": {"$regex": "李"}}], ids=str
)
def test_a_filter_that_makes_no_sense_is_refused_as_chroma_does(filled, where) -> None:
    with pytest.raises((ValueError, ChromaError)):
        filled.dense(filled.embedder.embed_query("leave"), 3, where)
    with pytest.raises((ValueError, ChromaError)):
        filled.lexical("leave", 3, where)


@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_what_comes_and_goes_counts_at_once(filled, where) -> None:
    check(filled, where)
    add(filled, range(60, 70))
    check(filled, where)
    filled.delete([str(number) for number in range(5, 65)])
    check(filled, where)
    add(filled, range(7, 12))
    filled.delete(["69"])
    check(filled, where)
    filled.delete()
    check(filled, where)


def test_a_replaced_text_is_found_by_its_new_metadata_only(filled) -> None:
    vector = filled.embedder.embed_query("leave")
    assert "1" in {filled.get_by_ids([id_])[0].id for id_, _ in filled.dense(vector, 99, {"author": "李雷"})}
    filled.add_texts(["leave"], [{"author": "新人"}], ids=["1"])
    found = filled.similarity_search("leave", k=99, filter={"author": "李雷"})
    assert "1" not in {one.id for one in found}
    assert [one.id for one in filled.similarity_search("leave", k=99, filter={"author": "新人"})] == ["1"]
    assert filled.similarities(vector, [id_ for id_, _ in filled.dense(vector, 1)]) == pytest.approx([1], abs=1e-4)


@pytest.fixture
def none_are_few(monkeypatch) -> None:
    """A knowledge base of so few chunks is large."""
    monkeypatch.setattr(memory_module, "SMALL", 0)
    monkeypatch.setattr("ingest.search.SMALL", 0)


@pytest.mark.usefixtures("none_are_few")
def test_many_chunks_are_read_by_a_thread_while_chroma_answers(filled, monkeypatch) -> None:
    monkeypatch.setattr(memory_module, "AT_ONCE", 5)
    monkeypatch.setattr(memory_module, "READ", 7)
    released, read = threading.Event(), filled._read

    def slowly(ids):
        assert released.wait(60)
        return read(ids)

    monkeypatch.setattr(filled, "_read", slowly)
    for where in FILTERS:
        check(filled, where)
    assert filled._resident() is None
    released.set()
    filled.wait_for_memory()
    assert filled._resident(begin=False) is not None
    for where in FILTERS:
        check(filled, where)


@pytest.mark.usefixtures("none_are_few")
def test_closing_does_not_wait_for_all_chunks_to_be_read(filled, monkeypatch) -> None:
    monkeypatch.setattr(memory_module, "AT_ONCE", 5)
    monkeypatch.setattr(memory_module, "READ", 1)
    began, released, read, times = threading.Event(), threading.Event(), filled._read, []

    def slowly(ids):
        times.append(1)
        began.set()
        assert released.wait(60)
        return read(ids)

    monkeypatch.setattr(filled, "_read", slowly)
    filled.dense(filled.embedder.embed_query("leave"), 3, {"author": "李雷"})
    assert began.wait(60)
    filled._memory._closed.set()
    released.set()
    filled.close()
    assert len(times) == 1


def test_of_few_chunks_each_is_found_whatever_the_index_reaches(filled, monkeypatch) -> None:
    monkeypatch.setattr(filled, "_query", lambda questions: [[] for _ in questions])
    ids = list(filled.journal.ids())
    for id_, document in filled.stored(ids).items():
        found = filled.dense(filled.embedder.embed_query(document.page_content), len(ids))
        assert len(found) == len(ids)
        assert dict(found)[id_] >= found[0][1] - 1e-3 and found[0][1] <= 1


@pytest.mark.usefixtures("none_are_few")
def test_a_question_without_a_filter_reads_nothing_into_memory(filled) -> None:
    filled.dense(filled.embedder.embed_query("leave"), 3)
    filled.lexical("leave", 3)
    assert filled._memory is None


def test_a_reader_sees_what_another_object_has_written(opened: Callable, embedder, monkeypatch) -> None:
    monkeypatch.setattr("ingest.store.REOPEN_SECONDS", 0)
    writer, reader = opened(embedder), opened(embedder)
    add(writer, range(30))
    reader._pause = 0
    check(reader, {"author": "李雷"})
    add(writer, range(30, 40))
    writer.delete(["1", "4"])
    reader._pause = 0
    for where in FILTERS:
        check(reader, where)


def test_a_rebuilt_knowledge_base_is_read_anew(opened: Callable, embedder) -> None:
    add(opened(embedder), range(30))
    rebuilt = opened(embedder, rebuild=True)
    check(rebuilt, {"author": "李雷"})
    add(rebuilt, range(10))
    check(rebuilt, {"author": "李雷"})


def test_chunks_of_an_unfinished_document_meet_no_filter(knowledge_base, embedder, folder: Path) -> None:
    ingest(folder, knowledge_base)
    vector, everything = embedder.embed_query("word"), {"source": {"$ne": "nothing"}}
    assert len(knowledge_base.dense(vector, 99, everything)) == 3
    with knowledge_base.writing() as writer:
        chunks = tuple(split(LoadedDocument("big.txt", "\n\n".join(["word " * 40] * 20)), embedder.offsets, 64))
        document = PreparedDocument("big.txt", "hash", chunks, file="big.txt")
        writer.add([(document, index) for index in range(len(chunks))])
        assert len(knowledge_base.dense(vector, 99, everything)) == 3
        assert knowledge_base.dense(vector, 99, {"source": "big.txt"}) == []
        writer.commit(document)
        assert len(knowledge_base.dense(vector, 99, {"source": "big.txt"})) == len(chunks)


def test_threads_may_filter_while_one_writes(opened: Callable, embedder) -> None:
    knowledge_base, failures, finished = opened(embedder), [], threading.Event()
    add(knowledge_base, range(20))

    def ask(where: dict) -> None:
        try:
            while not finished.is_set():
                vector = WordCountEmbedder().embed_query("leave")
                ids = [id_ for id_, _ in knowledge_base.dense(vector, 5, where)]
                ids += [id_ for id_, _ in knowledge_base.lexical("leave", 5, where)]
                knowledge_base.chunks(ids)
                knowledge_base.similarities(vector, ids)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(where,)) for where in FILTERS[:4]]
    for thread in threads:
        thread.start()
    for first in range(20, 120, 10):
        add(knowledge_base, range(first, first + 10))
        knowledge_base.delete([str(first - 5)])
    finished.set()
    for thread in threads:
        thread.join()
    assert failures == []
    for where in FILTERS:
        check(knowledge_base, where)
