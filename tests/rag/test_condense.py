import logging
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage

from llm.chat import ChatVLLM
from llm.protocol import URGENT, EngineBusy, EngineStopping, EngineUnavailable, InvalidRequest
from rag.condense import LONGEST, searches
from rag.pleasantries import is_pleasantry
from rag.profile import LARGE, SMALL

REWRITES = replace(LARGE, follow_up="rewrite")
HISTORY = [HumanMessage("年假有几天？"), AIMessage("十二天。")]
JOINED = ["年假有几天？\n十二天。\n那病假呢？"]


@pytest.mark.parametrize("profile", [SMALL, REWRITES])
@pytest.mark.parametrize(
    "history", [[], [AIMessage("Hello, what can I do?")], [HumanMessage("你好！"), AIMessage("你好！")]]
)
async def test_the_first_question_is_searched_for_as_it_is_and_calls_no_model(scripted, profile, history) -> None:
    engine = scripted("unused")
    assert await searches("年假有几天？", history, chat=ChatVLLM(engine=engine), profile=profile) == ["年假有几天？"]
    assert engine.submitted == []


@pytest.mark.parametrize("profile", [SMALL, LARGE])
async def test_joining_puts_each_earlier_turn_before_the_follow_up_newest_first_and_calls_no_model(
    scripted, profile
) -> None:
    engine = scripted("unused")
    history = [HumanMessage("Who?"), AIMessage("Me [1]."), AIMessage("And you【2】."), *HISTORY]
    texts = await searches("那病假呢？", history, chat=ChatVLLM(engine=engine), profile=profile)
    assert texts == [*JOINED, "Who?\nMe . And you.\n那病假呢？"]
    assert engine.submitted == []


async def test_a_follow_up_of_words_enough_is_searched_for_alone_too(scripted) -> None:
    question = "What does an express repair cost?"
    texts = await searches(question, HISTORY, chat=ChatVLLM(engine=scripted("unused")), profile=LARGE)
    assert texts == [f"年假有几天？\n十二天。\n{question}", question]


async def test_only_the_last_turns_are_joined_and_of_them_only_the_beginning(scripted) -> None:
    history = [message for number in range(9) for message in (HumanMessage(f"q{number}"), AIMessage("x" * 9000))]
    texts = await searches("And?", history, chat=ChatVLLM(engine=scripted("unused")), profile=LARGE)
    assert [text[:2] for text in texts] == ["q8", "q7", "q6", "q5"]
    assert max(map(len, texts)) < LONGEST + 20


@pytest.mark.parametrize(
    "pleasantry",
    [
        *(
            "Thanks!",
            "thank you so much, that helps",
            "OK",
            "Good morning!",
            "Great, got it.",
            "Hi there",
            "bye, see you",
        ),
        *("谢谢", "好的", "好的，明白了。", "谢谢，帮大忙了！", "早上好！", "你好", "再见", "嗯嗯", "👍 thanks"),
    ],
)
@pytest.mark.parametrize("profile", [SMALL, REWRITES])
async def test_thanks_and_greetings_are_not_turned_into_a_question_nor_joined_with_one(
    scripted, pleasantry: str, profile
) -> None:
    chat = ChatVLLM(engine=scripted("unused"))
    assert await searches(pleasantry, HISTORY, chat=chat, profile=profile) == [pleasantry]
    after = [*HISTORY, HumanMessage(pleasantry), AIMessage("不客气。")]
    assert await searches("那病假呢？", after, chat=chat, profile=SMALL) == JOINED


@pytest.mark.parametrize(
    "question",
    [
        *(
            "Thanks. And the hub?",
            "OK, what about sick leave",
            "Hi, how many days do I get",
            "Hiring rules",
        ),
        *("好的，那病假呢", "谢谢，病假几天", "好的，请问谁批准", "好，我问的是外包人员", "嗯，告诉我病假的规定", ""),
        "Good night shift pay and the bonus for the people who work in the cellar on Sundays in May",
    ],
)
def test_a_question_that_begins_with_thanks_is_a_question(question: str) -> None:
    assert not is_pleasantry(question)


async def test_a_rewrite_comes_from_the_model_urgently_and_in_few_tokens(scripted, tokenizer) -> None:
    engine = scripted(" 病假有几天？\n")
    chat = ChatVLLM(engine=engine, temperature=1.0, max_tokens=2000)
    assert await searches("那病假呢？", HISTORY, chat=chat, profile=REWRITES) == ["病假有几天？"]
    (request,) = engine.submitted
    assert request.priority == URGENT
    assert request.sampling.max_tokens <= 64
    assert request.sampling.temperature == 0
    prompt = tokenizer.decode(request.prompt_ids)
    assert "User: 年假有几天？\nAssistant: 十二天。\nUser: 那病假呢？" in prompt
    assert engine.unfinished == 0


async def test_a_question_of_its_own_is_searched_for_beside_its_rewrite(scripted) -> None:
    question = "What does an express repair cost?"
    chat = ChatVLLM(engine=scripted("Leave of an express?"))
    assert await searches(question, HISTORY, chat=chat, profile=REWRITES) == ["Leave of an express?", question]
    same = ChatVLLM(engine=scripted(question))
    assert await searches(question, HISTORY, chat=same, profile=REWRITES) == [question]


async def test_a_long_conversation_is_rewritten_from_its_end(scripted, tokenizer) -> None:
    engine = scripted("病假有几天？")
    history = [HumanMessage(f"question {number}") for number in range(50)]
    await searches("And now?", history, chat=ChatVLLM(engine=engine), profile=REWRITES)
    prompt = tokenizer.decode(engine.submitted[0].prompt_ids)
    assert "question 49" in prompt
    assert "question 40" not in prompt


@pytest.mark.parametrize("reply", ["", " \n", "ramble" * 100])
async def test_an_empty_or_overlong_rewrite_falls_back_to_joining(scripted, reply: str) -> None:
    chat = ChatVLLM(engine=scripted(reply))
    assert await searches("那病假呢？", HISTORY, chat=chat, profile=REWRITES) == JOINED


@pytest.mark.parametrize(
    ("question", "reply", "kept"),
    [
        ("那病假呢？", "How many days of sick leave are there?", False),
        ("那病假呢？", "病假有几天？", True),
        ("那 HP-1024 呢？", "HP-1024 的保修期多长？", True),
        ("And sick leave?", "病假有几天？", False),
        ("And sick leave?", "How many days of sick leave (病假) are there?", True),
        ("Und der Urlaub für Übernahmen?", "Wie viel Urlaub gibt es für Übernahmen?", True),
        ("А отпуск?", "How many days of leave?", False),
        ("では病気の場合は？", "病假有几天？", False),
        ("2024?", "What was 2024?", True),
    ],
)
async def test_a_rewrite_in_another_language_falls_back_to_joining(scripted, question, reply, kept) -> None:
    texts = await searches(question, HISTORY, chat=ChatVLLM(engine=scripted(reply)), profile=REWRITES)
    assert (texts[0] == reply) is kept
    assert kept or texts[0] == f"年假有几天？\n十二天。\n{question}"


class Broken(GenericFakeChatModel):
    """A remote model whose server does not like the call."""

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("no such host")


async def test_whatever_another_chat_model_raises_a_rewrite_that_fails_falls_back_to_joining(caplog) -> None:
    with caplog.at_level(logging.WARNING, "rag.condense"):
        assert await searches("那病假呢？", HISTORY, chat=Broken(messages=iter([])), profile=REWRITES) == JOINED
    assert "no such host" in caplog.text


async def test_a_rewrite_that_is_refused_falls_back_to_joining_and_is_logged(scripted, caplog) -> None:
    engine = scripted("unused")
    engine.refusal = InvalidRequest("vLLM says no")
    with caplog.at_level(logging.WARNING, "rag.condense"):
        assert await searches("那病假呢？", HISTORY, chat=ChatVLLM(engine=engine), profile=REWRITES) == JOINED
    assert "vLLM says no" in caplog.text


async def test_a_conversation_too_long_to_rewrite_falls_back_to_joining(scripted) -> None:
    engine = scripted("unused", max_model_len=300)
    history = [HumanMessage("年假有几天？"), AIMessage("十二天。" * 100)]
    (joined,) = await searches("那病假呢？", history, chat=ChatVLLM(engine=engine), profile=REWRITES)
    assert joined.startswith("年假有几天？\n十二天。") and joined.endswith("\n那病假呢？")
    assert engine.submitted == []


@pytest.mark.parametrize("failure", [EngineStopping, EngineUnavailable, EngineBusy])
async def test_an_engine_that_takes_nothing_fails_the_turn(scripted, failure: type[Exception]) -> None:
    engine = scripted("unused")
    engine.refusal = failure("not now")
    with pytest.raises(failure, match="not now"):
        await searches("那病假呢？", HISTORY, chat=ChatVLLM(engine=engine), profile=REWRITES)


async def test_an_engine_that_dies_while_it_rewrites_fails_the_turn(scripted) -> None:
    engine = scripted(EngineUnavailable("dead"))
    with pytest.raises(EngineUnavailable):
        await searches("那病假呢？", HISTORY, chat=ChatVLLM(engine=engine), profile=REWRITES)
    assert engine.unfinished == 0


async def test_any_chat_model_can_rewrite() -> None:
    chat = GenericFakeChatModel(messages=iter(["病假有几天？"]))
    assert await searches("那病假呢？", HISTORY, chat=chat, profile=REWRITES) == ["病假有几天？"]
