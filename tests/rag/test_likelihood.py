"""Which questions the passages found for them are likely to answer."""

import pytest
from langchain_core.documents import Document

from rag.grounding import GroundingOptions
from rag.likelihood import Signs, likelihood, signs
from rag.pleasantries import is_pleasantry, is_small_talk
from rag.retriever import HybridRetriever
from tests.rag.conftest import passage
from tests.rag.test_grounding import Found

LEAST = GroundingOptions().likelihood


@pytest.mark.parametrize(
    "question", ["When does the canteen open?", "How many days of annual leave do employees get?", "年假有几天？"]
)
def test_what_a_passage_says_is_likely_answered(retriever: HybridRetriever, question: str) -> None:
    assert likelihood(question, retriever.invoke(question), retriever) > LEAST


@pytest.mark.parametrize(
    "question",
    [
        "Why does the zeppelin unicycle?",
        "Does the canteen serve vegetarian dumplings on Sundays?",
        "火星的宠物可以带吗？",
        "年假可以带宠物去健身房吗？",
    ],
)
def test_a_known_subject_with_what_no_document_says_of_it_is_not(retriever: HybridRetriever, question: str) -> None:
    assert likelihood(question, retriever.invoke(question), retriever) < LEAST


@pytest.mark.parametrize("question", ["Wann landet ein Zeppelin?", "ゼッペリンはいつ着陸しますか", "the of", ""])
def test_of_a_question_in_a_language_that_no_document_is_in_nothing_is_told(retriever, question: str) -> None:
    assert likelihood(question, [passage("The canteen opens at noon.")], retriever) == 1.0


def test_a_retriever_that_cannot_tell_and_no_passages_tell_nothing(retriever: HybridRetriever) -> None:
    assert likelihood("When does the canteen open?", [passage("It rains.")], Found(documents=[])) == 1.0
    assert signs("When does the canteen open?", [], retriever) is None


def test_words_count_in_any_form_in_one_passage_with_its_heading_and_file(retriever: HybridRetriever) -> None:
    def coverage(*passages: Document) -> float:
        found = signs("Is annual travel approved?", passages, retriever)
        assert found
        return found.coverage

    assert coverage(passage("Who approves it.", "annual.md", heading="Travels")) == pytest.approx(1.0)
    parts = [passage("Annual."), passage("Approval of travel."), passage("Nothing.")]
    assert max(coverage(part) for part in parts) == coverage(*parts) < 1.0


def test_the_lead_is_the_best_score_less_the_second_and_one_passage_has_none(retriever: HybridRetriever) -> None:
    scored = [passage("The canteen opens.", score=score) for score in (0.4, 0.9, 0.7)]
    found, alone = (signs("When does the canteen open?", some, retriever) for some in (scored, scored[:1]))
    assert found and alone and (round(found.lead, 3), alone.lead) == (0.2, 0.0)


def test_each_sign_speaks_for_an_answer() -> None:
    middle = Signs(0.4, 0.5, 0.1).likelihood
    more = Signs(0.6, 0.5, 0.1), Signs(0.4, 0.7, 0.1), Signs(0.4, 0.5, 0.3)
    assert all(middle < one.likelihood < 1 for one in more)


@pytest.mark.parametrize(
    "text", ["Hello!", "Hi there", "Thank you so much.", "OK, great, thanks!", "谢谢你", "好的，再见！", "你好吗？"]
)
def test_small_talk_says_nothing_else(text: str) -> None:
    assert is_small_talk(text)


@pytest.mark.parametrize(
    "text", ["Great Wall height", "OK button", "Thanksgiving", "", "了解一下年假", "好的，病假几天"]
)
def test_a_message_that_says_more_is_no_small_talk(text: str) -> None:
    assert not is_small_talk(text)


def test_a_pleasantry_may_say_more_as_long_as_it_asks_nothing() -> None:
    assert is_pleasantry("谢谢，帮大忙了！") and not is_small_talk("谢谢，帮大忙了！")
    assert not is_pleasantry("Thanks, how long?")
