import asyncio
import random
from itertools import product
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests

from ingest.store import KnowledgeBase
from llm.chat import ChatVLLM
from rag.condense import searches
from rag.profile import SMALL
from rag.retriever import HybridRetriever
from rag.search import search
from tests.fakes import WordCountEmbedder


def sources(documents: list) -> list[str]:
    return [document.metadata["source"] for document in documents]


@pytest.mark.parametrize(
    ("question", "source"),
    [
        ("How many days of annual leave do employees get?", "leave.md"),
        ("Who approves travel?", "travel.md"),
        ("When does the canteen open?", "canteen.txt"),
        ("Where do bicycles go?", "handbook.pdf"),
        ("每年有几天年假？", "annual-zh.txt"),
        ("病假要什么证明？", "sick-zh.txt"),
        ("远程办公每周几天？", "remote-zh.txt"),
    ],
)
async def test_the_right_passage_comes_first_called_either_way(retriever, question: str, source: str) -> None:
    found = await retriever.ainvoke(question)
    assert sources(found)[0] == source
    assert found == await asyncio.to_thread(retriever.invoke, question)


async def test_the_question_itself_ranks_first_and_scores_are_in_order(retriever) -> None:
    found = await retriever.ainvoke("The canteen opens at noon.")
    scores = [document.metadata["score"] for document in found]
    assert sources(found)[0] == "canteen.txt"
    assert scores[0] > 0.99
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


async def test_a_passage_says_where_it_stands(retriever) -> None:
    text = (await retriever.ainvoke("annual leave of full-time employees"))[0]
    start = text.metadata.pop("score")
    assert 0 < start <= 1
    assert text.metadata == {"source": "leave.md", "line": 1, "heading": "Leave", "start": 0, "end": 83}
    assert len(text.page_content) == 83
    page = (await retriever.ainvoke("Where do bicycles go?"))[0]
    assert page.page_content == "Bicycles go to the cellar"
    assert page.metadata["page"] == 2
    assert "line" not in page.metadata


@pytest.mark.parametrize(("k", "number"), [(1, 1), (4, 4), (1000, 10)])
async def test_there_are_k_passages_or_all(knowledge_base, embedder, k: int, number: int) -> None:
    assert knowledge_base.count()[1] == 10
    found = await HybridRetriever(knowledge_base=knowledge_base, embedder=embedder, k=k).ainvoke("leave")
    assert len(found) == len({document.id for document in found}) == number


@pytest.mark.parametrize(
    "question",
    [
        "zyzzyva qwertz",
        "…！？",
        "",
        "鑫淼",
        'leave AND (OR NOT "travel" NEAR/3 *',
        "leave'; DROP TABLE chunks; --",
        '"unbalanced ^ - : + leave*',
        "source:leave.md {a b} \x00 \\ %",
        "长" * 3000,
    ],
)
async def test_any_question_is_searched_for(retriever, question: str) -> None:
    found = await retriever.ainvoke(question)
    assert len(found) == 3
    assert all(0 <= document.metadata["score"] <= 1 for document in found)


async def test_an_empty_knowledge_base_gives_no_passage(tmp_path, embedder) -> None:
    knowledge_base = KnowledgeBase.open(tmp_path, "empty", embedder, create=True)
    retriever = HybridRetriever(knowledge_base=knowledge_base, embedder=embedder)
    assert await retriever.ainvoke("leave") == []
    knowledge_base.close()


@pytest.mark.parametrize(
    ("earlier", "follow_up", "source"),
    [
        ("年假有几天？", "那病假呢？", "sick-zh.txt"),
        ("年假有几天？", "不对，我问的是外包人员", "contractors-zh.txt"),
        ("Who approves travel?", "And what is her limit?", "limits.md"),
    ],
)
async def test_a_joined_follow_up_finds_its_passage(retriever, scripted, earlier, follow_up, source) -> None:
    history = [HumanMessage(earlier), AIMessage("…")]
    texts = await searches(follow_up, history, chat=ChatVLLM(engine=scripted()), profile=SMALL)
    _, found = await search(texts, retriever)
    assert source in sources(found)


async def test_the_loop_runs_on_while_a_question_is_embedded(knowledge_base, blocked) -> None:
    retriever = HybridRetriever(knowledge_base=knowledge_base, embedder=blocked, k=1)
    search = asyncio.create_task(retriever.ainvoke("leave"))
    assert await asyncio.to_thread(blocked.entered.wait, 60)
    assert not search.done()
    blocked.released.set()
    assert sources(await search) == ["leave.md"]


async def test_the_loop_runs_on_while_the_words_are_searched_for(
    retriever, knowledge_base, blocked, monkeypatch
) -> None:
    lexical = knowledge_base.lexical

    def slow(query: str, k: int, where: None = None) -> list[tuple[str, float]]:
        blocked.embed_query(query)
        return lexical(query, k)

    monkeypatch.setattr(knowledge_base, "lexical", slow)
    search = asyncio.create_task(retriever.ainvoke("annual leave"))
    assert await asyncio.to_thread(blocked.entered.wait, 60)
    assert not search.done()
    blocked.released.set()
    assert sources(await search)[0] == "leave.md"


async def test_a_failing_embedder_fails_the_search(knowledge_base, embedder, monkeypatch) -> None:
    def fail(text: str) -> list[float]:
        raise RuntimeError("no vectors today")

    monkeypatch.setattr(embedder, "embed_query", fail)
    retriever = HybridRetriever(knowledge_base=knowledge_base, embedder=embedder)
    with pytest.raises(RuntimeError, match="no vectors today"):
        await retriever.ainvoke("leave")


SYLLABLES = ["ka", "ro", "mi", "tes", "lun", "ba", "ve", "dor"]


@pytest.mark.parametrize("k", [1, 5])
async def test_the_best_by_both_figures_are_found_though_not_all_vectors_are_read(
    tmp_path, embedder, monkeypatch, k: int
) -> None:
    chance = random.Random(0)
    words = ["".join(pair) for pair in product(SYLLABLES, SYLLABLES)]
    written = [" ".join(chance.choices(words, k=9)) for _ in range(300)]
    knowledge_base = KnowledgeBase.open(tmp_path, "words", embedder, create=True)
    knowledge_base.add_texts(written)
    retriever = HybridRetriever(knowledge_base=knowledge_base, embedder=embedder, k=k)
    vectors, read, only_lexical = knowledge_base.vectors, list[str](), list[str]()
    monkeypatch.setattr(knowledge_base, "vectors", lambda ids: read.extend(ids) or vectors(ids))
    for text in written[:20]:
        question = " ".join(text.split()[:4])
        found = await retriever.ainvoke(question)
        vector = embedder.embed_query(question)
        near, good = dict(knowledge_base.dense(vector, 40)), dict(knowledge_base.lexical(question, 40))
        only_lexical += good.keys() - near
        all_vectors = vectors([*good, *near])
        weights = knowledge_base.relevance().for_question(question, embedder)
        coverages = zip(all_vectors, knowledge_base.coverages(question, [*all_vectors]), strict=True)
        every = [weights.relevance(float(all_vectors[id_] @ vector), coverage) for id_, coverage in coverages]
        scores = [passage.metadata["score"] for passage in found]
        assert scores == pytest.approx(sorted(every, reverse=True)[:k], abs=2e-3)
    assert len(read) < len(only_lexical)
    knowledge_base.close()


class TestLangChainsContract(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _given(self, knowledge_base: KnowledgeBase, embedder: WordCountEmbedder) -> None:
        self.parts = {"knowledge_base": knowledge_base, "embedder": embedder}

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return HybridRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return self.parts

    @property
    def retriever_query_example(self) -> str:
        return "How many days of leave?"
