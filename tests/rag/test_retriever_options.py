"""What a call of the retriever, or its settings, can ask for: k, threshold, filter, MMR, rerank, neighbours."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import pytest
from langchain_core.documents import Document

from ingest.pipeline import ingest
from ingest.settings import IngestOptions
from ingest.store import KnowledgeBase
from llm.options import RerankerOptions
from llm.rerank import Reranker
from rag.likeness import Seen
from rag.questions import embed_question
from rag.retriever import HybridRetriever
from rag.selection import Candidate, RetrievalOptions, spread
from tests.fakes import WordCountEmbedder
from tests.llm.test_rerank import cross_encoder

RULES = [
    ("Leave is 25 days.", {"year": 2023, "team": "hr", "when": date(2023, 1, 1)}),
    ("Leave is 30 days now.", {"year": 2024, "team": "hr", "when": date(2024, 1, 1)}),
    ("病假为七天。", {"year": 2024, "team": "人事"}),
    ("Leave of absence is for the board.", {"team": "it"}),
    ("The canteen opens at noon.", {}),
]
Make = Callable[..., HybridRetriever]


def texts(documents: list[Document]) -> list[str]:
    return [document.page_content for document in documents]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes retrievers on a knowledge base of some texts with their metadata."""
    embedder = WordCountEmbedder()
    knowledge_base = KnowledgeBase.open(tmp_path / "store", "rules", embedder, create=True)

    def of(rules: list[tuple[str, dict[str, Any]]], **fields: Any) -> HybridRetriever:
        knowledge_base.add_texts([text for text, _ in rules], [about for _, about in rules])
        return HybridRetriever(knowledge_base=knowledge_base, embedder=embedder, **fields)

    yield of
    knowledge_base.close()


async def test_k_of_a_call_goes_before_the_retrievers(make: Make) -> None:
    retriever = make(RULES, k=2)
    for k, number in [(None, 2), (1, 1), (4, 4), (10_000, 5)]:
        found = await retriever.ainvoke("leave", k=k)
        assert len(found) == number
        assert found == await asyncio.to_thread(retriever.invoke, "leave", k=k)


async def test_a_tighter_threshold_lets_less_through_until_nothing_is_left(make: Make) -> None:
    retriever = make(RULES)
    every = await retriever.ainvoke("Leave is 25 days.")
    for threshold in (0.0, 0.02, 0.5, 0.9, 1.0):
        found = await retriever.ainvoke("Leave is 25 days.", score_threshold=threshold)
        assert found == [one for one in every if one.metadata["score"] >= threshold]
    assert texts(await retriever.ainvoke("Leave is 25 days.", score_threshold=0.99)) == ["Leave is 25 days."]
    assert await retriever.ainvoke("zyzzyva", score_threshold=0.5) == []
    assert await retriever.ainvoke("病假", score_threshold=1) == []


async def test_the_threshold_of_the_settings_holds_where_a_call_says_nothing(make: Make) -> None:
    retriever = make(RULES, options=RetrievalOptions(score_threshold=0.9))
    assert texts(await retriever.ainvoke("病假为七天。")) == ["病假为七天。"]
    assert len(await retriever.ainvoke("病假为七天。", score_threshold=0)) == 5


@pytest.mark.parametrize("unit", [1.0, 3.0, 0.01])
async def test_lengths_of_vectors_change_no_score(tmp_path: Path, unit: float, monkeypatch: Any) -> None:
    embed = WordCountEmbedder.embed_query
    monkeypatch.setattr(WordCountEmbedder, "embed_query", lambda self, text: [unit * one for one in embed(self, text)])
    embedder = WordCountEmbedder()
    knowledge_base = KnowledgeBase.open(tmp_path, "rules", embedder, create=True)
    knowledge_base.add_texts([text for text, _ in RULES])
    found = await HybridRetriever(knowledge_base=knowledge_base, embedder=embedder).ainvoke("病假为七天。")
    assert found[0].page_content == "病假为七天。" and found[0].metadata["score"] > 0.99
    assert found[1].metadata["score"] < 0.1
    knowledge_base.close()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"k": 0}, "0 passages"),
        ({"k": -1}, "-1 passages"),
        ({"score_threshold": 2.0}, r"in \[0, 1\]"),
        ({"score_threshold": -0.1}, r"in \[0, 1\]"),
        ({"score_threshold": float("nan")}, r"in \[0, 1\]"),
        ({"filter": {"year": {"$foo": 1}}}, "operator"),
        ({"filter": {"year": {}}}, "operator"),
        ({"filter": {"$and": []}}, "needs a list"),
        ({"filter": {"$or": [{}, {"year": 1}]}}, "needs a list"),
    ],
)
async def test_what_cannot_be_meant_is_refused(make: Make, wanted: dict[str, Any], message: str) -> None:
    retriever = make(RULES)
    with pytest.raises(ValueError, match=message):
        await retriever.ainvoke("leave", **wanted)
    with pytest.raises(ValueError, match=message):
        await asyncio.to_thread(retriever.invoke, "leave", **wanted)


@pytest.mark.parametrize(
    ("condition", "rules"),
    [
        ({"year": 2024}, {1, 2}),
        ({"year": {"$eq": 2024}}, {1, 2}),
        ({"year": {"$ne": 2024}}, {0, 3, 4}),  # what lacks the key is not equal
        ({"year": {"$in": [2023, 2024]}}, {0, 1, 2}),
        ({"year": {"$nin": [2023]}}, {1, 2, 3, 4}),
        ({"year": {"$gt": 2023}}, {1, 2}),
        ({"year": {"$gte": 2023}}, {0, 1, 2}),
        ({"year": {"$lt": 2024}}, {0}),
        ({"year": {"$lte": 2024}}, {0, 1, 2}),
        ({"year": {"$gt": 2022, "$lt": 2024}}, {0}),
        ({"team": "人事"}, {2}),
        ({"team": {"$in": ["人事", "it"]}}, {2, 3}),
        ({"year": 2024, "team": "hr"}, {1}),
        ({"$and": [{"year": 2024}, {"team": "hr"}]}, {1}),
        ({"$and": [{"year": 2024}]}, {1, 2}),
        ({"$or": [{"year": 2023}, {"team": "it"}]}, {0, 3}),
        ({"$or": [{"$and": [{"year": 2024}, {"team": "人事"}]}, {"team": "it"}]}, {2, 3}),
        ({"when": {"$gte": date(2024, 1, 1)}}, {1}),
        ({"nowhere": 1}, set()),
        ({"nowhere": {"$ne": 1}}, {0, 1, 2, 3, 4}),
        ({"year": "2024"}, set()),  # a text is no number
        ({}, {0, 1, 2, 3, 4}),
        (None, {0, 1, 2, 3, 4}),
    ],
)
async def test_a_filter_holds_for_both_legs(make: Make, condition: Any, rules: set[int]) -> None:
    retriever = make(RULES)
    expected = {RULES[rule][0] for rule in rules}
    for question in ("Leave is 25 days.", "病假", "zyzzyva"):
        assert set(texts(await retriever.ainvoke(question, filter=condition))) == expected


SENTENCE = "The warranty of the probe covers sensor, cable and housing for private customers in every country of sale. "
SATZ = "探头的保修包括传感器、电缆和外壳，适用于在任何销售国家购买本产品的所有个人客户，并自购买之日起生效。"


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (SENTENCE * 2, SENTENCE * 2, True),
        (SENTENCE * 2, f"  {SENTENCE.upper()}\n{SENTENCE}", True),
        (SENTENCE * 2, SENTENCE * 2 + "Amen.", True),
        (SENTENCE, SENTENCE.replace("private", "business").replace("every", "no").replace("cable", "plug"), False),
        (f"{SENTENCE} 24 months.", f"{SENTENCE} 36 months.", False),
        (SATZ, SATZ, True),
        (SATZ, SATZ.replace("生效", "有效"), True),
        (SATZ, SATZ.replace("传感器", "电池").replace("外壳", "镜头").replace("个人", "公司"), False),
        (f"{SATZ}保修期为两年。", f"{SATZ}保修期为三年。", False),
        ("年假", "病假", False),
        ("Leave", "leave", True),
        ("", "", False),
        ("-----", "-----", False),
    ],
)
def test_texts_that_say_nearly_the_same_are_told_from_others(one: str, two: str, same: bool) -> None:
    for first, second in ((one, two), (two, one)):
        seen = Seen()
        assert seen.take(first)
        assert seen.take(second) is not same


@pytest.mark.parametrize(("copied", "question"), [(SENTENCE, "warranty of the probe"), (SATZ, "探头的保修")])
async def test_copies_take_one_place_however_many_there_are(make: Make, copied: str, question: str) -> None:
    copies = [(f"{copied}{ending}", {}) for ending in "!?。." * 60]
    retriever = make([*copies, *RULES], k=2)
    found = await retriever.ainvoke(question)
    assert len(found) == 2
    assert sum(copied in text for text in texts(found)) == 1
    assert copied in found[0].page_content


def test_mmr_prefers_what_is_unlike_the_passages_before() -> None:
    candidates = [Candidate(Document(id, id=id), score) for id, score in [("a", 0.9), ("b", 0.89), ("c", 0.5)]]
    vectors = {"a": numpy.array([1.0, 0]), "b": numpy.array([2.0, 0.1]), "c": numpy.array([0, 3.0])}

    def chosen(diversity: float, k: int = 2) -> str:
        return "".join(str(one.document.id) for one in spread(candidates, vectors, k, diversity=diversity))

    assert chosen(0) == "ab"
    assert chosen(0.5) == "ac"
    assert chosen(0.5, k=9) == "acb"
    del vectors["b"]
    assert chosen(0.5) == "ab"


async def test_diversity_brings_another_subject_among_the_passages(make: Make) -> None:
    rules = [(f"Leave is {days} days in the {team} team.", {}) for days, team in [(20, "red"), (21, "blue")]]
    rules += [("病假 leave needs a certificate of a doctor.", {})]
    question = "How many days is leave in the team?"
    assert "病假" not in "".join(texts(await make(rules, k=2).ainvoke(question)))
    diverse = make([], k=2, options=RetrievalOptions(diversity=0.7))
    assert "病假" in "".join(texts(await diverse.ainvoke(question)))


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Reranker:
    return Reranker(options=RerankerOptions(model=str(cross_encoder(tmp_path_factory.mktemp("cross-encoder")))))


async def test_a_reranker_orders_the_candidates_by_its_own_score(make: Make, reranker: Reranker) -> None:
    retriever = make(RULES, k=3, reranker=reranker)
    for question in ("how many days is the leave ?", "病假有多少天"):
        found = await retriever.ainvoke(question)
        scores = dict(zip([text for text, _ in RULES], reranker.score(question, [r for r, _ in RULES]), strict=True))
        assert texts(found) == sorted(scores, key=lambda text: -scores[text])[:3]
        assert [one.metadata["score"] for one in found] == [pytest.approx(scores[t], abs=1e-3) for t in texts(found)]
        assert found == await asyncio.to_thread(retriever.invoke, question)
    median = sorted(scores.values())[2]
    assert len(await retriever.ainvoke(question, score_threshold=median + 1e-3, k=5)) == 2


async def test_a_reranker_reads_the_best_candidates_only_and_none_of_nothing(make: Make, reranker: Reranker) -> None:
    retriever = make(RULES, k=1, reranker=reranker, options=RetrievalOptions(rerank_candidates=2))
    best = texts(await make([]).ainvoke("leave days", k=2))
    assert texts(await retriever.ainvoke("leave days", k=1))[0] in best
    assert await retriever.ainvoke("leave days", filter={"nowhere": 1}) == []


@pytest.mark.parametrize("word", ["leave ", "假"])
def test_a_long_question_is_split_and_pooled(word: str) -> None:
    read: list[str] = []

    class Noting(WordCountEmbedder):
        def embed_query(self, text: str) -> list[float]:
            read.append(text)
            return super().embed_query(text)

    embedder = Noting(max_tokens=64)
    tail = "密码 password"
    vector = embed_question(word * 200 + tail, embedder)
    assert len(read) > 4 and all(len(embedder.offsets(text)) <= embedder.max_tokens for text in read)
    assert "".join("".join(read).split()) == "".join((word * 200 + tail).split())
    assert numpy.linalg.norm(vector) == pytest.approx(1)
    assert numpy.dot(vector, WordCountEmbedder().embed_query("password")) > 0.001
    read.clear()
    embed_question(word * 100_000, embedder)
    assert 16 <= len(read) <= 32


async def test_the_tail_of_a_long_question_finds_its_passage(make: Make) -> None:
    retriever = make(RULES)
    question = "Please note that this was asked before by colleagues. " * 30 + "When does the canteen open?"
    assert texts(await retriever.ainvoke(question))[0] == "The canteen opens at noon."


BOOK = "".join(f"第{number}章的内容是{word}。" * 6 + f"\n\nChapter {number} is about {word}s. " * 6 + "\n\n\n"
               for number, word in enumerate("杏梨桃李梅枣柿橘", start=1))  # fmt: skip


@pytest.fixture
def book(tmp_path: Path) -> Iterator[KnowledgeBase]:
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "book.txt").write_text(BOOK, encoding="utf-8")
    (folder / "other.txt").write_text("桃 again, in another file.", encoding="utf-8")
    knowledge_base = KnowledgeBase.open(tmp_path / "store", "books", WordCountEmbedder(), create=True)
    ingest(folder, knowledge_base, IngestOptions(workers=0, chunk_tokens=40))
    yield knowledge_base
    knowledge_base.close()


@pytest.mark.parametrize("width", [1, 2, 5])
async def test_neighbours_are_merged_with_exact_spans(book: KnowledgeBase, width: int) -> None:
    bare = HybridRetriever(knowledge_base=book, embedder=book.embedder, k=3)
    wide = bare.model_copy(update={"options": RetrievalOptions(neighbours=width)})
    for question in ("第3章的内容是桃", "Chapter 8 is about", "Chapter 1"):
        found, alone = await wide.ainvoke(question), await bare.ainvoke(question)
        assert found[0].metadata["score"] == alone[0].metadata["score"]
        places = list[tuple[str, int, int]]()
        for passage in found:
            about = passage.metadata
            text = BOOK if about["source"] == "book.txt" else "桃 again, in another file."
            assert passage.page_content.split() == text[about["start"] : about["end"]].split()
            assert len(passage.page_content) == about["end"] - about["start"]
            assert about["start"] <= about["found_start"] < about["found_end"] <= about["end"]
            assert text.count("\n", 0, about["start"]) == about["line"] - 1
            places.append((about["source"], about["start"], about["end"]))
        best = alone[0]
        cut = slice(*(found[0].metadata[f"found_{end}"] - found[0].metadata["start"] for end in ("start", "end")))
        assert found[0].page_content[cut] == best.page_content
        assert len(found[0].page_content) > len(best.page_content)
        ordered = sorted(places)
        assert all(one[0] != two[0] or one[2] <= two[1] for one, two in pairwise(ordered))


async def test_neighbours_do_not_cross_a_page_or_a_document(knowledge_base, embedder) -> None:
    options = RetrievalOptions(neighbours=5)
    retriever = HybridRetriever(knowledge_base=knowledge_base, embedder=embedder, k=10, options=options)
    found = {(one.metadata["source"], one.metadata.get("page")): one.page_content for one in retriever.invoke("to")}
    assert found["handbook.pdf", 1] == "Parking permits are free"
    assert found["handbook.pdf", 2] == "Bicycles go to the cellar"
    assert len(found) == 10
