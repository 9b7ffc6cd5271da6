"""The sentence that is quoted where a small model's own words fail."""

import pytest
from langchain_core.documents import Document

from rag.expected import holds_what_is_asked
from rag.nearest import Nearest, nearest_sentence
from rag.retriever import HybridRetriever
from tests.rag.conftest import passage
from tests.rag.test_grounding import Found

LEAVE = passage("# Leave\n\nCarry-over ends in March. Full-time employees get 25 days of annual leave.")
SICK = passage("病假须交医院证明。病假的长度为七天。")
SOURCES = {2: LEAVE, 5: SICK}
OTHER = Found(documents=[])


def words(found: Nearest | None, sources: dict[int, Document] = SOURCES) -> str:
    assert found
    return sources[found.source].page_content[found.start : found.end]


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ("When does the carry-over end?", "Carry-over ends in March."),
        ("How many days of annual leave do employees get?", "Full-time employees get 25 days of annual leave."),
        ("病假要交什么证明？", "病假须交医院证明。"),
        ("病假有几天？", "病假的长度为七天。"),
    ],
)
def test_the_nearest_sentence_by_its_words_and_the_kind_of_thing_asked_for(question: str, sentence: str) -> None:
    assert words(nearest_sentence(question, SOURCES, OTHER)) == sentence


def test_no_heading_and_no_single_word_is_nearest() -> None:
    assert nearest_sentence("Leave?", {1: passage("# Leave for all\n\nNo.")}, OTHER) is None
    assert nearest_sentence("Leave?", {}, OTHER) is None


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ("Who approves travel?", "Travel is approved by the line manager, Dr Adeyemi."),
        ("When does the canteen open?", "The canteen opens at noon."),
        ("员工每年有几天年假？", "员工每年有十二天年假。"),
    ],
)
def test_a_retriever_of_ours_weighs_the_sentences(retriever: HybridRetriever, question: str, sentence: str) -> None:
    sources = dict(enumerate(retriever.invoke(question), 1))
    assert words(nearest_sentence(question, sources, retriever), sources) == sentence


def test_relevances_are_on_the_scale_of_the_score_and_rise_with_the_words_shared(retriever: HybridRetriever) -> None:
    texts = ["The canteen opens at noon.", "The canteen.", "Bicycles."]
    found = retriever.relevances("When does the canteen open?", texts)
    assert found == sorted(found, reverse=True) and 0 < found[-1] < found[0] < 1
    assert retriever.relevances("", texts) and retriever.relevances("Canteen?", []) == []


@pytest.mark.parametrize(
    ("question", "holding", "lacking"),
    [
        ("How long is the leave?", "It is 14 weeks.", "It is paid."),
        ("What is the price of a probe?", "A probe costs EUR 85.", "A probe is cheap."),
        ("On which weekday do we meet?", "We meet on Tuesday.", "We meet in the hall."),
        ("Who leads the office?", "It is led by Solveig Rustad.", "It is led well."),
        ("一共有多少人？", "一共有三十人。", "人很多。"),
        ("负责人是谁？", "负责人是周雅琴女士。", "负责人不在。"),
        ("什么时候开门？", "星期五开门。", "开门很早。"),
    ],
)
def test_what_a_question_asks_for_is_a_number_a_time_or_a_person(question: str, holding: str, lacking: str) -> None:
    assert holds_what_is_asked(question, holding)
    assert not holds_what_is_asked(question, lacking)


@pytest.mark.parametrize("question", ["Does it measure nitrogen?", "What does E140 mean?", "可以带宠物吗？", ""])
def test_a_question_for_something_else_is_held_by_any_sentence(question: str) -> None:
    assert holds_what_is_asked(question, "It is paid.")
