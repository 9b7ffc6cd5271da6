import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_tests.integration_tests.vectorstores import VectorStoreIntegrationTests

from ingest.knowledge_bases import EmbedderMismatch
from ingest.pipeline import ingest
from ingest.store import KnowledgeBase
from ingest.writer import Writer
from tests.fakes import WordCountEmbedder


class TestLangChainsContract(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> Iterator[KnowledgeBase]:  # type: ignore[override]
        knowledge_base = KnowledgeBase.open(tmp_path, "知识库", self.get_embeddings(), create=True)
        yield knowledge_base
        knowledge_base.close()


LONG = "\n\n".join(f"Paragraph {number} says nothing that matters to anyone." for number in range(30))


def test_what_was_added_is_a_document_of_its_own_in_both_legs(knowledge_base, embedder) -> None:
    (id_,) = knowledge_base.add_texts(["年假为十二天 annual leave"], [{"source": "手册.pdf", "page": 3}])
    (document,) = knowledge_base.documents()
    assert (document.source, document.file, document.chunks) == (f"added://{id_}", None, 1)
    ((chunk, _),) = knowledge_base.lexical("年假", 5)
    assert knowledge_base.dense(embedder.embed_query("annual leave"), 5)[0][0] == chunk
    (cited,) = knowledge_base.chunks([chunk])
    assert cited.metadata == {"source": "手册.pdf", "page": 3, "start": 0, "end": 19, "heading": ""}


def test_a_chunk_without_a_source_is_cited_by_its_documents_name(knowledge_base) -> None:
    knowledge_base.add_texts(["Pigeons carry the mail."], [{"start": "soon"}], ids=["1"])
    ((chunk, _),) = knowledge_base.lexical("pigeons", 1)
    assert knowledge_base.chunks([chunk])[0].metadata == {"source": "added://1", "start": 0, "end": 23, "heading": ""}
    assert knowledge_base.get_by_ids(["1"])[0].metadata == {"start": "soon"}


def test_an_ingest_leaves_what_was_added_and_a_search_finds_both(knowledge_base, folder) -> None:
    knowledge_base.add_texts(["Pigeons carry the mail."], ids=["leave.md"])
    ingest(folder, knowledge_base)
    (folder / "travel.txt").unlink()
    ingest(folder, knowledge_base)
    sources = [document.source for document in knowledge_base.documents()]
    assert sources == ["added://leave.md", "guide.txt", "leave.md"]
    found = knowledge_base.similarity_search("pigeons carry mail", k=3)
    assert (found[0].id, len(found)) == ("leave.md", 3)


def test_a_long_text_is_cut_to_the_embedders_limit_and_its_end_is_found(opened) -> None:
    knowledge_base = opened(WordCountEmbedder(max_tokens=64))
    knowledge_base.add_texts([LONG + "\n\n密码是 47913"], [{"start": 7, "author": "李"}], ids=["长"])
    best = knowledge_base.similarity_search("密码是 47913", k=1)[0]
    assert "47913" in best.page_content
    assert best.metadata["author"] == "李"
    assert best.metadata["document_start"] == 7
    parts = knowledge_base.get_by_ids(["长"])
    assert len(parts) == knowledge_base.documents()[0].chunks > 1
    assert " ".join(" ".join(part.page_content for part in parts).split()) == " ".join((LONG + " 密码是 47913").split())
    assert all(part.metadata["end"] - part.metadata["start"] == len(part.page_content) for part in parts)
    assert knowledge_base.delete(["长"])
    assert knowledge_base.count() == (0, 0)


def test_a_shorter_text_of_the_same_id_takes_the_place_of_a_long_one(knowledge_base) -> None:
    knowledge_base.add_texts([LONG], ids=["1"])
    knowledge_base.add_texts(["Short now."], ids=["1"])
    assert knowledge_base.count() == (1, 1)
    assert knowledge_base.journal.pending() == []
    assert knowledge_base.ask(lambda collection: collection.count()) == 1


@pytest.mark.parametrize("step", ["add", "commit"])
def test_adding_the_same_again_may_be_killed_and_loses_nothing(knowledge_base, opened, embedder, monkeypatch, step):
    knowledge_base.add_texts(["年假为十二天"], [{"a": 1}], ids=["1"])
    original = getattr(Writer, step)

    def die(self, *arguments) -> None:
        original(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Writer, step, die)
        with pytest.raises(KeyboardInterrupt):
            knowledge_base.add_texts(["年假为十二天"], [{"a": 1}], ids=["1"])
    again = opened(embedder)
    again.add_texts(["other"])  # sweeps what the killed one left
    assert again.similarity_search("年假为十二天", k=1) == [Document("年假为十二天", id="1", metadata={"a": 1})]


def test_half_characters_and_nul_are_mended_in_texts_metadata_and_questions(knowledge_base) -> None:
    text, about = "lone \ud800 surr \0 nul 年假", {"k\ud800": "v\ud800"}
    ids = knowledge_base.add_documents([Document(text, metadata=about), Document(LONG + "\ud83d\ude00")])
    (found,) = knowledge_base.get_by_ids(ids[:1])
    assert (found.page_content, found.metadata) == ("lone \ufffd surr  nul 年假", {"k\\ud800": "v\\ud800"})
    assert knowledge_base.get_by_ids(ids[1:])[-1].page_content.endswith("😀")
    for search in (knowledge_base.similarity_search, knowledge_base.max_marginal_relevance_search):
        assert search("surr \ud800 年假", k=1)[0].id == ids[0]
    with pytest.raises(ValueError, match="half a surrogate pair"):
        knowledge_base.add_texts(["年假"], ids=["a\ud800"])


def test_what_any_store_can_hold_is_stored_as_it_was_given(knowledge_base) -> None:
    text = " soft\u00adware\r\nu\u0308 \ufeff "
    assert knowledge_base.get_by_ids(knowledge_base.add_texts([text]))[0].page_content == text


def test_a_text_that_says_nothing_is_not_stored_and_takes_out_what_had_its_id(knowledge_base, caplog) -> None:
    knowledge_base.add_texts(["annual leave", "travel"], ids=["a", "b"])
    with caplog.at_level(logging.WARNING):
        added = knowledge_base.add_documents(
            [Document(""), Document("\u3000\n\0"), Document("病假")], ids=["a", "c", "d"]
        )
    assert added == ["d"]
    assert "not added: a, c" in caplog.text
    assert [document.source for document in knowledge_base.documents()] == ["added://b", "added://d"]
    assert len(knowledge_base.similarity_search("annual leave", k=9)) == 2


@pytest.mark.parametrize("k", [0, -1])
def test_a_search_for_nothing_is_refused(knowledge_base, k: int) -> None:
    knowledge_base.add_texts(["年假"])
    vector = knowledge_base.embeddings.embed_query("年假")
    with pytest.raises(ValueError, match=f"for {k} chunks"):
        knowledge_base.similarity_search("年假", k=k)
    with pytest.raises(ValueError, match=f"for {k} chunks"):
        knowledge_base.max_marginal_relevance_search_by_vector(vector, fetch_k=k)


def test_of_equal_ids_in_one_call_the_last_stays(knowledge_base) -> None:
    assert knowledge_base.add_texts(["first", "second"], ids=["1", "1"]) == ["1", "1"]
    assert [document.page_content for document in knowledge_base.get_by_ids(["1"])] == ["second"]


def test_a_found_chunk_of_a_file_can_be_edited_and_deleted_by_its_id_and_comes_back_with_its_file(
    knowledge_base, folder
) -> None:
    ingest(folder, knowledge_base)
    (found,) = knowledge_base.similarity_search("annual leave days", k=1)
    knowledge_base.add_documents([Document("Thirty days of annual leave.", id=found.id)])
    assert [document.source for document in knowledge_base.documents()] == [
        f"added://{found.id}",
        "guide.txt",
        "travel.txt",
    ]
    knowledge_base.delete([found.id])
    assert knowledge_base.lexical("annual leave", 5) == []
    assert ingest(folder, knowledge_base).added == ("leave.md",)


def test_deleting_without_ids_empties_it(knowledge_base, folder) -> None:
    ingest(folder, knowledge_base)
    knowledge_base.add_texts(["more"])
    knowledge_base.delete()
    assert knowledge_base.count() == (0, 0)
    assert knowledge_base.ask(lambda collection: collection.count()) == 0
    assert len(ingest(folder, knowledge_base).added) == 3


def test_metadata_of_any_shape_goes_in_and_what_is_lost_is_said(knowledge_base, caplog) -> None:
    about = {"author": None, "tags": ["甲", "乙"], "box": {"w": 1}, "when": date(2024, 2, 29), "ok": True}
    with caplog.at_level(logging.WARNING):
        ids = knowledge_base.add_texts(["full", "bare"], [about | {"n": float("nan")}, {}])
    assert "n" in caplog.text.rsplit(":", 1)[1]
    full, bare = knowledge_base.get_by_ids(ids)
    seconds = datetime(2024, 2, 29, tzinfo=UTC).timestamp()
    assert full.metadata == {
        "tags": ["甲", "乙"],
        "box.w": 1,
        "when": "2024-02-29",
        "when_ts": seconds,
        "ok": True,
    }
    assert bare.metadata == {}


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ({"tags": {"$contains": "甲"}}, {"a", "b"}),
        ({"box.w": {"$gt": 1}}, {"b"}),
        ({"when": {"$gte": date(2024, 3, 1)}}, {"b"}),
        ({"when": date(2024, 2, 29)}, {"a"}),
        ({"tags": {"$contains": "甲"}, "box.w": 1}, {"a"}),
        ({"$or": [{"box.w": 1}, {"who": "李"}]}, {"a", "c"}),
        ({"who": {"$in": ["李", "王"]}}, {"c"}),
        ({"who": "nobody"}, set()),
        ({}, {"a", "b", "c"}),
    ],
)
def test_both_legs_keep_to_a_filter(knowledge_base, embedder, conditions, found) -> None:
    abouts = [
        {"tags": ["甲"], "box": {"w": 1}, "when": date(2024, 2, 29)},
        {"tags": ["乙", "甲"], "box": {"w": 2}, "when": date(2024, 4, 1)},
        {"who": "李"},
    ]
    knowledge_base.add_texts(["leave one", "leave two", "leave three"], abouts, ids=["a", "b", "c"])
    assert {one.id for one in knowledge_base.similarity_search("leave", k=3, filter=conditions)} == found
    lexical = [id_ for id_, _ in knowledge_base.lexical("leave", 3, where=conditions)]
    dense = [id_ for id_, _ in knowledge_base.dense(embedder.embed_query("leave"), 3, where=conditions)]
    assert set(lexical) == set(dense)
    assert len(lexical) == len(found)


def test_the_lexical_leg_looks_deeper_until_enough_meet_the_filter(knowledge_base) -> None:
    texts = [f"leave {'leave ' * (40 - number)}" for number in range(40)]
    knowledge_base.add_texts(texts, [{"n": number} for number in range(40)])
    found = knowledge_base.lexical("leave", 2, where={"n": {"$gte": 37}})
    assert len(found) == 2
    assert all(document.metadata["n"] >= 37 for document in knowledge_base.chunks([id_ for id_, _ in found]))


@pytest.mark.parametrize("search_type", ["similarity", "mmr", "similarity_score_threshold"])
def test_it_is_a_retriever_of_every_kind(knowledge_base, search_type) -> None:
    knowledge_base.add_texts(["pigeons carry the mail", "年假为十二天", "annual leave"], ids=["a", "b", "c"])
    options = {"k": 2} | ({"score_threshold": 0.5} if search_type == "similarity_score_threshold" else {})
    retriever = knowledge_base.as_retriever(search_type=search_type, search_kwargs=options)
    found = retriever.invoke("年假为十二天")
    assert found[0].id == "b"
    assert len(found) == (1 if search_type == "similarity_score_threshold" else 2)


def test_scores_are_in_0_to_1_and_the_text_itself_has_1(knowledge_base) -> None:
    knowledge_base.add_texts(["pigeons carry the mail", "年假为十二天"])
    scores = [score for _, score in knowledge_base.similarity_search_with_score("年假为十二天", k=2)]
    assert scores == pytest.approx([1, 0], abs=1e-5)
    assert all(0 <= score <= 1 for score in scores)


def test_an_unknown_option_of_a_search_is_refused(knowledge_base) -> None:
    with pytest.raises(TypeError, match="treshold"):
        knowledge_base.similarity_search("leave", treshold=1)


def test_ids_and_metadata_must_be_as_many_as_texts(knowledge_base) -> None:
    with pytest.raises(ValueError, match="2 texts, but 1 ids and 2 metadatas"):
        knowledge_base.add_texts(["a", "b"], ids=["1"])


async def test_asynchronous_methods_leave_the_loop_free(knowledge_base, embedder, monkeypatch) -> None:
    release, embed = threading.Event(), WordCountEmbedder.embed_documents

    def wait(self, texts: list[str]) -> list[list[float]]:
        assert release.wait(60)
        return embed(self, texts)

    monkeypatch.setattr(WordCountEmbedder, "embed_documents", wait)
    adding = asyncio.create_task(knowledge_base.aadd_texts(["annual leave"]))
    assert await knowledge_base.asimilarity_search("leave", k=1) == []
    release.set()
    await adding
    assert len(await knowledge_base.asimilarity_search("leave", k=1)) == 1


def test_from_texts_opens_or_makes_it_and_adds(tmp_path: Path) -> None:
    embeddings = DeterministicFakeEmbedding(size=8)
    KnowledgeBase.from_texts(["foo"], embeddings, [{"a": 1}], ids=["1"], folder=tmp_path, name="团队").close()
    knowledge_base = KnowledgeBase.from_texts(["bar"], embeddings, folder=tmp_path, name="团队")
    assert knowledge_base.count() == (2, 2)
    assert knowledge_base.get_by_ids(["1"]) == [Document("foo", id="1", metadata={"a": 1})]
    with pytest.raises(EmbedderMismatch):
        KnowledgeBase.open(tmp_path, "团队", DeterministicFakeEmbedding(size=9))
    knowledge_base.close()


def test_a_reader_sees_what_another_object_adds_and_may_add_next(opened: Callable, embedder, monkeypatch) -> None:
    monkeypatch.setattr("ingest.store.REOPEN_SECONDS", 0)
    first, second = opened(embedder), opened(embedder)
    for turn, knowledge_base in enumerate([first, second, first, first, second]):
        knowledge_base.add_texts([f"text {turn} of several"], ids=[str(turn)])
    for knowledge_base in (first, second):
        assert {one.id for one in knowledge_base.similarity_search("text of several", k=9)} == set("01234")
