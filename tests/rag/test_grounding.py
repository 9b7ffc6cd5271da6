"""Grounding modes: what strict mode answers without a model, what it cuts, and what every mode reports."""

from collections.abc import AsyncGenerator

import pytest
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from llm.chat import ChatVLLM
from rag.answer import Done, Event, Question, Sources, Token, answer
from rag.citations import Sentence
from rag.conversation import Conversations
from rag.grounding import GREETINGS, REFUSALS, GroundingOptions, answerable, judge, reply_without_model
from rag.profile import LARGE, SMALL, Profile
from tests.fakes import ScriptedEngine
from tests.rag.conftest import passage

CANTEEN = passage("The canteen opens at noon. Lunch costs 60 kroner.", score=0.8)
LEAVE = passage("员工每年有十二天年假。", "annual-zh.txt", score=0.7)
OFF_TOPIC = passage("Bicycles go to the cellar.", score=0.2)
STRICT = GroundingOptions(mode="strict")
REPLY = "The canteen opens at noon [1]. Every visitor gets a free apple. Lunch costs 60 kroner."


class Found(BaseRetriever):
    """Gives what it was told to."""

    documents: list[Document]

    def _get_relevant_documents(self, query: str, *, run_manager: object) -> list[Document]:
        return self.documents


async def turn(
    engine: ScriptedEngine,
    text: str,
    documents: list[Document],
    options: GroundingOptions,
    profile: Profile = LARGE,
    **more: str,
) -> tuple[list[Event], Done]:
    events: AsyncGenerator[Event, None] = answer(
        Question(text, **more),  # type: ignore[arg-type]
        chat=ChatVLLM(engine=engine),
        retriever=Found(documents=documents),
        profile=profile,
        conversations=Conversations(),
        grounding=options,
    )
    got = [event async for event in events]
    assert isinstance(got[0], Sources) and isinstance(got[-1], Done)
    shown = "".join(event.text for event in got if isinstance(event, Token))
    assert shown == got[-1].answer
    return got, got[-1]


@pytest.mark.parametrize("documents", [[OFF_TOPIC], []], ids=["below the bar", "nothing"])
@pytest.mark.parametrize(
    ("question", "language"), [("Who won the cup?", "en"), ("谁赢了比赛？", "zh"), ("誰が勝った？", "ja")]
)
async def test_strict_refuses_in_the_questions_language_without_a_call(scripted, documents, question, language) -> None:
    engine = scripted(REPLY)
    (sources, *_), done = await turn(engine, question, documents, STRICT)
    assert engine.submitted == []
    assert isinstance(sources, Sources) and sources.passages == documents
    assert (done.answer, done.finish_reason, done.citations) == (REFUSALS[language], "refusal", [])
    assert (done.grounding.refused, done.grounding.grounded, done.grounding.score) == (True, False, 0.0)
    assert done.usage["total_tokens"] == 0


async def test_strict_cuts_what_has_no_evidence(scripted) -> None:
    _, done = await turn(scripted(REPLY), "When does the canteen open?", [CANTEEN], STRICT)
    assert done.answer == "The canteen opens at noon. Lunch costs 60 kroner."
    assert [done.answer[one.answer_start : one.answer_end] for one in done.citations] == [
        "The canteen opens at noon.",
        "Lunch costs 60 kroner.",
    ]
    assert (done.grounding.grounded, done.grounding.score, done.grounding.unsupported) == (True, 1.0, [])


async def test_strict_shows_no_sentence_before_it_is_verified(scripted) -> None:
    got, _ = await turn(scripted(REPLY), "When does the canteen open?", [CANTEEN], STRICT)
    pieces = [event.text for event in got if isinstance(event, Token)]
    assert pieces == ["The canteen opens at noon.", " Lunch costs 60 kroner."]


async def test_strict_refuses_when_nothing_is_left(scripted) -> None:
    _, done = await turn(scripted("每位访客有一个苹果。"), "年假有几天？", [LEAVE], STRICT)
    assert (done.answer, done.finish_reason, done.grounding.refused) == (REFUSALS["zh"], "refusal", True)
    assert done.usage["completion_tokens"] > 0


async def test_strict_may_flag_instead(scripted) -> None:
    options = GroundingOptions(mode="strict", unsupported="flag")
    _, done = await turn(scripted(REPLY), "When does the canteen open?", [CANTEEN], options)
    ((start, end),) = done.grounding.unsupported
    assert done.answer[start:end] == "Every visitor gets a free apple."
    assert (done.grounding.grounded, done.grounding.refused) == (False, False)


@pytest.mark.parametrize("mode", ["strict", "balanced"])
@pytest.mark.parametrize(
    ("question", "documents", "quote"),
    [
        ("When does the canteen open?", [CANTEEN, LEAVE], "The canteen opens at noon."),
        ("How much is lunch?", [LEAVE, CANTEEN], "Lunch costs 60 kroner."),
        ("员工年假有几天？", [CANTEEN, LEAVE], "员工每年有十二天年假。"),
    ],
)
async def test_where_a_small_models_words_fail_the_nearest_sentence_is_quoted(
    scripted, mode, question, documents, quote
) -> None:
    engine = scripted("Every visitor gets a free apple. " * 9)
    got, done = await turn(engine, question, documents, GroundingOptions(mode=mode), SMALL)
    assert [event.text for event in got if isinstance(event, Token)] == [quote]
    assert (done.answer, done.finish_reason, done.grounding.grounded, done.grounding.score) == (
        quote,
        "stop",
        True,
        1.0,
    )
    (citation,) = done.citations
    assert (citation.quote, citation.method, citation.match) == (quote, "quote", "exact")
    assert isinstance(got[0], Sources)
    document = got[0].prompt.sources[citation.source]
    assert document.page_content[citation.start : citation.end] == quote
    assert engine.unfinished == 0 and done.usage["completion_tokens"] > 0


async def test_of_a_small_models_words_those_with_evidence_are_the_answer(scripted) -> None:
    _, done = await turn(scripted(REPLY), "When does the canteen open?", [CANTEEN], GroundingOptions(), SMALL)
    assert done.answer == "The canteen opens at noon. Lunch costs 60 kroner."
    assert {citation.method for citation in done.citations} <= {"mark", "match"}


async def test_a_small_model_that_fails_on_another_subject_is_followed_by_the_refusal(scripted) -> None:
    engine = scripted("Norway won.")
    _, done = await turn(engine, "Who won the cup?", [OFF_TOPIC], GroundingOptions(), SMALL)
    assert (done.answer, done.grounding.refused, len(engine.submitted)) == (REFUSALS["en"], True, 1)
    _, done = await turn(engine, "Who won the cup?", [], GroundingOptions(), SMALL)
    assert done.answer == REFUSALS["en"]


async def test_a_small_model_is_not_asked_for_small_talk_and_says_what_it_knows_in_open_mode(scripted) -> None:
    engine = scripted("Norway won.")
    _, done = await turn(engine, "谢谢！", [CANTEEN], GroundingOptions(), SMALL)
    assert (done.answer, engine.submitted) == (GREETINGS["zh"], [])
    _, done = await turn(engine, "Who won the cup?", [CANTEEN], GroundingOptions(mode="open"), SMALL)
    assert (done.answer, done.citations) == ("Norway won.", [])


async def test_strict_refuses_what_the_documents_have_no_words_for(scripted, retriever) -> None:
    engine = scripted(REPLY)
    turns = {
        "likely": GroundingOptions(mode="strict", bar=0),
        "all": GroundingOptions(mode="strict", bar=0, likelihood=0),
    }
    asked = {
        name: [
            event
            async for event in answer(
                Question("Does the zeppelin unicycle in the canteen?"),
                chat=ChatVLLM(engine=engine),
                retriever=retriever,
                profile=LARGE,
                conversations=Conversations(),
                grounding=options,
            )
        ][-1]
        for name, options in turns.items()
    }
    assert {name: done.grounding.refused for name, done in asked.items()} == {"likely": True, "all": False}
    assert len(engine.submitted) == 1


@pytest.mark.parametrize("mode", ["balanced", "open"])
async def test_other_modes_ask_the_model_and_flag_and_only_an_open_one_does_where_nothing_was_found(
    scripted, mode: str
) -> None:
    engine = scripted(REPLY)
    _, done = await turn(engine, "When does the canteen open?", [CANTEEN, OFF_TOPIC], GroundingOptions(mode=mode))
    assert [done.answer[slice(*span)] for span in done.grounding.unsupported] == ["Every visitor gets a free apple."]
    assert (done.grounding.mode, done.grounding.grounded) == (mode, True)
    assert 0.5 < done.grounding.score < 1
    _, empty = await turn(engine, "Who won?", [], GroundingOptions(mode=mode))
    assert empty.grounding.refused == (mode == "balanced") and not empty.grounding.grounded
    assert len(engine.submitted) == (2 if mode == "open" else 1)
    prompt = engine.tokenizer.decode(engine.submitted[0].prompt_ids)
    assert ("from what you know" in prompt) == (mode == "open")


async def test_a_request_may_say_otherwise_than_the_options(scripted) -> None:
    engine = scripted(REPLY)
    _, done = await turn(engine, "Who won?", [OFF_TOPIC], GroundingOptions(), grounding="strict")
    assert (done.grounding.mode, engine.submitted) == ("strict", [])


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("Hello!", "Hello! Ask me"),
        ("Thank you very much.", "Hello! Ask me"),
        ("你好！", "您好！"),
        ("谢谢你", "您好！"),
    ],
)
async def test_small_talk_in_strict_mode_gets_a_fixed_reply(scripted, text: str, reply: str) -> None:
    engine = scripted(REPLY)
    _, done = await turn(engine, text, [CANTEEN], STRICT)
    assert done.answer.startswith(reply) and engine.submitted == [] and not done.grounding.grounded


@pytest.mark.parametrize(
    "text", ["Hi, when does the canteen open?", "Thanks to whom do we have it?", "你好，年假几天？", "OK button?"]
)
def test_a_question_behind_a_greeting_is_no_small_talk(text: str) -> None:
    assert reply_without_model(text, text, [CANTEEN], STRICT, refuses=True) is None


def test_refusals_may_be_reworded_and_extended() -> None:
    options = GroundingOptions(refusals={"en": "Dazu steht nichts in den Dokumenten.", "ar": "لا"})
    assert options.refusal("Wer gewann?") == "Dazu steht nichts in den Dokumenten."
    assert options.refusal("谁赢了？") == REFUSALS["zh"]


def test_the_bar_is_reached_by_one_passage_and_by_any_without_a_score() -> None:
    assert answerable("Lunch?", [OFF_TOPIC, CANTEEN], 0.8) and not answerable("Lunch?", [OFF_TOPIC, CANTEEN], 0.81)
    assert answerable("Lunch?", [passage("Lunch is free.")], 0.9) and not answerable("Lunch?", [], 0.0)


def test_a_code_that_no_passage_names_is_not_answered_from_its_neighbours() -> None:
    codes = passage("code: E207; meaning: SIM card blocked", score=0.9)
    assert answerable("What does E207 mean?", [codes], 0.5) and not answerable("What does E305 mean?", [codes], 0.5)
    assert answerable("What do 75,000 kroner buy on the 3rd?", [codes], 0.5)


@pytest.mark.parametrize(
    ("supports", "grounded"),
    [
        ([1.0, 0.8], {"strict": True, "balanced": True, "open": True}),
        ([1.0, 0.0], {"strict": False, "balanced": True, "open": True}),
        ([0.7, 0.0, 0.0], {"strict": False, "balanced": False, "open": True}),
        ([0.0], {"strict": False, "balanced": False, "open": False}),
        ([], {"strict": False, "balanced": False, "open": False}),
    ],
)
def test_what_is_grounded_in_each_mode(supports: list[float], grounded: dict[str, bool]) -> None:
    sentences = [Sentence(9 * at, 9 * at + 8, support, 5) for at, support in enumerate(supports)]
    for mode in ("strict", "balanced", "open"):
        judged = judge(mode, sentences, [], refused=False)
        assert judged.grounded == grounded[mode]
        assert judged.score == round(sum(supports) / max(1, len(supports)), 3)


def test_a_question_back_and_function_words_alone_weigh_nothing() -> None:
    sentences = [Sentence(0, 4, 0.0, 0), Sentence(5, 30, 0.9, 6)]
    judged = judge("strict", sentences, [], refused=False)
    assert (judged.grounded, judged.score, judged.unsupported) == (True, 0.9, [])
