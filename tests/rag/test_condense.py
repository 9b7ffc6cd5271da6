import logging

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage

from llm.chat import ChatVLLM
from llm.protocol import URGENT, EngineBusy, EngineStopping, EngineUnavailable, InvalidRequest
from rag.condense import standalone
from rag.profile import LARGE, SMALL

HISTORY = [HumanMessage("年假有几天？"), AIMessage("十二天。")]
JOINED = "年假有几天？\n那病假呢？"


@pytest.mark.parametrize("profile", [SMALL, LARGE])
@pytest.mark.parametrize("history", [[], [AIMessage("Hello, what can I do?")]])
async def test_the_first_question_is_searched_for_as_it_is_and_calls_no_model(scripted, profile, history) -> None:
    engine = scripted("unused")
    assert await standalone("年假有几天？", history, chat=ChatVLLM(engine=engine), profile=profile) == "年假有几天？"
    assert engine.submitted == []


async def test_joining_puts_the_last_question_before_the_follow_up_and_calls_no_model(scripted) -> None:
    engine = scripted("unused")
    history = [HumanMessage("Who?"), AIMessage("Me."), *HISTORY]
    assert await standalone("那病假呢？", history, chat=ChatVLLM(engine=engine), profile=SMALL) == JOINED
    assert engine.submitted == []


async def test_a_rewrite_comes_from_the_model_urgently_and_in_few_tokens(scripted, tokenizer) -> None:
    engine = scripted(" 病假有几天？\n")
    chat = ChatVLLM(engine=engine, temperature=1.0, max_tokens=2000)
    assert await standalone("那病假呢？", HISTORY, chat=chat, profile=LARGE) == "病假有几天？"
    (request,) = engine.submitted
    assert request.priority == URGENT
    assert request.sampling.max_tokens <= 64
    assert request.sampling.temperature == 0
    prompt = tokenizer.decode(request.prompt_ids)
    assert "User: 年假有几天？\nAssistant: 十二天。\nUser: 那病假呢？" in prompt
    assert engine.unfinished == 0


async def test_a_long_conversation_is_rewritten_from_its_end(scripted, tokenizer) -> None:
    engine = scripted("病假有几天？")
    history = [HumanMessage(f"question {number}") for number in range(50)]
    await standalone("And now?", history, chat=ChatVLLM(engine=engine), profile=LARGE)
    prompt = tokenizer.decode(engine.submitted[0].prompt_ids)
    assert "question 49" in prompt
    assert "question 40" not in prompt


@pytest.mark.parametrize("reply", ["", " \n", "ramble" * 100])
async def test_an_empty_or_overlong_rewrite_falls_back_to_joining(scripted, reply: str) -> None:
    chat = ChatVLLM(engine=scripted(reply))
    assert await standalone("那病假呢？", HISTORY, chat=chat, profile=LARGE) == JOINED


async def test_a_rewrite_that_is_refused_falls_back_to_joining_and_is_logged(scripted, caplog) -> None:
    engine = scripted("unused")
    engine.refusal = InvalidRequest("vLLM says no")
    with caplog.at_level(logging.WARNING, "rag.condense"):
        assert await standalone("那病假呢？", HISTORY, chat=ChatVLLM(engine=engine), profile=LARGE) == JOINED
    assert "vLLM says no" in caplog.text


async def test_a_conversation_too_long_to_rewrite_falls_back_to_joining(scripted) -> None:
    engine = scripted("unused", max_model_len=300)
    history = [HumanMessage("年假有几天？"), AIMessage("十二天。" * 100)]
    assert await standalone("那病假呢？", history, chat=ChatVLLM(engine=engine), profile=LARGE) == JOINED
    assert engine.submitted == []


@pytest.mark.parametrize("failure", [EngineStopping, EngineUnavailable, EngineBusy])
async def test_an_engine_that_takes_nothing_fails_the_turn(scripted, failure: type[Exception]) -> None:
    engine = scripted("unused")
    engine.refusal = failure("not now")
    with pytest.raises(failure, match="not now"):
        await standalone("那病假呢？", HISTORY, chat=ChatVLLM(engine=engine), profile=LARGE)


async def test_an_engine_that_dies_while_it_rewrites_fails_the_turn(scripted) -> None:
    engine = scripted(EngineUnavailable("dead"))
    with pytest.raises(EngineUnavailable):
        await standalone("那病假呢？", HISTORY, chat=ChatVLLM(engine=engine), profile=LARGE)
    assert engine.unfinished == 0


async def test_any_chat_model_can_rewrite() -> None:
    chat = GenericFakeChatModel(messages=iter(["病假有几天？"]))
    assert await standalone("那病假呢？", HISTORY, chat=chat, profile=LARGE) == "病假有几天？"
