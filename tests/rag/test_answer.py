import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage

from llm.chat import ChatVLLM
from llm.prompting import PromptTooLong
from llm.protocol import EngineBusy, EngineStopping, EngineUnavailable, InvalidRequest
from rag.answer import Done, EmptyQuestion, Event, Question, Sources, Token, answer
from rag.conversation import Conversations
from rag.profile import LARGE, SMALL, Profile
from rag.retriever import HybridRetriever
from tests.fakes import ScriptedEngine
from tests.rag.conftest import Gate

QUESTION = Question("When does the canteen open?")
REWRITES = replace(LARGE, follow_up="rewrite")
BABBLES = replace(SMALL, quotes=False)
HISTORY = (HumanMessage("Where is the canteen?"), AIMessage("In the cellar."))
REPLY = "The canteen opens at noon [1]."

Ask = Callable[..., AsyncGenerator[Event, None]]


@pytest.fixture
def ask(retriever: HybridRetriever) -> Ask:
    """One turn on an engine, or on another chat model."""

    def turn(
        model: ScriptedEngine | BaseChatModel,
        question: Question = QUESTION,
        profile: Profile = LARGE,
        retriever: HybridRetriever = retriever,
    ) -> AsyncGenerator[Event, None]:
        chat = ChatVLLM(engine=model) if isinstance(model, ScriptedEngine) else model
        return answer(question, chat=chat, retriever=retriever, profile=profile, conversations=Conversations())

    return turn


async def every(events: AsyncGenerator[Event, None]) -> tuple[Sources, str, Done]:
    """All events of a turn that ends well: the sources, the tokens' text, the end."""
    first, *tokens, last = [event async for event in events]
    assert isinstance(first, Sources)
    assert isinstance(last, Done)
    assert all(isinstance(event, Token) and event.text for event in tokens)
    return first, "".join(event.text for event in tokens if isinstance(event, Token)), last


async def test_a_turn_gives_sources_then_tokens_then_the_whole_answer(scripted, ask) -> None:
    engine = scripted(REPLY)
    sources, text, done = await every(ask(engine))
    assert sources.question == QUESTION.text
    assert sources.passages[0].metadata["source"] == "canteen.txt"
    assert text == done.answer == "The canteen opens at noon."
    (citation,) = done.citations
    assert (citation.source, citation.file, citation.quote) == (1, "canteen.txt", "The canteen opens at noon.")
    assert citation.method == "mark"
    assert done.finish_reason == "stop"
    assert done.model == "scripted"
    assert engine.unfinished == 0


async def test_usage_counts_exactly_what_was_sent_and_said(scripted, ask) -> None:
    engine = scripted(REPLY)
    sources, _, done = await every(ask(engine))
    sent = len(engine.submitted[0].prompt_ids)
    assert sources.prompt.tokens == sent
    assert done.usage == {
        "prompt_tokens": sent,
        "completion_tokens": 6,
        "total_tokens": sent + 6,
        "cached_tokens": 3,
    }


async def test_timings_name_every_stage(scripted, ask) -> None:
    _, _, done = await every(ask(scripted(REPLY)))
    assert list(done.timings) == ["condense", "retrieve", "prompt", "first_token", "total"]
    assert all(0 <= seconds <= done.timings["total"] for seconds in done.timings.values())


@pytest.mark.parametrize(
    ("reply", "profile", "sampling", "reason", "shown"),
    [
        ("One two.", LARGE, {}, "stop", "One two."),
        ("One two three.", LARGE, {"max_tokens": 2}, "length", "One two "),
        ("One two three.", replace(LARGE, max_tokens=1), {}, "length", "One "),
        ("One. Two. One. Two. One.", BABBLES, {}, "repetition", "One. Two."),
        ("One. Two. One. Two. One.", LARGE, {}, "stop", "One. Two. One. Two. One."),
        ("One. Two.", BABBLES, {}, "stop", "One. Two."),
        ("", LARGE, {}, "stop", ""),
    ],
)
async def test_the_end_says_why_the_answer_ended(scripted, ask, reply, profile, sampling, reason, shown) -> None:
    engine = scripted(reply)
    _, text, done = await every(ask(engine, replace(QUESTION, sampling=sampling), profile))
    assert (done.finish_reason, text) == (reason, shown)
    assert done.answer == shown
    assert engine.unfinished == 0


async def test_a_repetition_ends_the_generation_and_is_counted_up_to_there(scripted, ask) -> None:
    engine = scripted("One. Two. One. " + "Never. " * 1000)
    _, _, done = await every(ask(engine, profile=replace(SMALL, max_tokens=2000)))
    assert done.usage["completion_tokens"] <= 4
    assert engine.unfinished == 0


async def test_what_the_caller_wants_of_the_sampling_wins(scripted, ask) -> None:
    engine = scripted(REPLY)
    await every(ask(engine, replace(QUESTION, sampling={"temperature": 0.5, "max_tokens": 9})))
    sampling = engine.submitted[0].sampling
    assert (sampling.temperature, sampling.max_tokens) == (0.5, 9)
    await every(ask(engine))
    assert engine.submitted[1].sampling.max_tokens == LARGE.max_tokens


@pytest.mark.parametrize("text", ["", " \n\u3000"])
async def test_an_empty_question_is_refused(scripted, ask, text: str) -> None:
    engine = scripted(REPLY)
    with pytest.raises(EmptyQuestion):
        await anext(ask(engine, Question(text)))
    assert engine.submitted == []


@pytest.mark.parametrize("refusal", [EngineBusy, EngineStopping, EngineUnavailable, InvalidRequest])
async def test_a_refusal_comes_before_any_event(scripted, ask, refusal: type[Exception]) -> None:
    engine = scripted(REPLY)
    engine.refusal = refusal("no")
    with pytest.raises(refusal, match="no"):
        await anext(ask(engine))
    assert engine.unfinished == 0


async def test_a_question_too_long_is_refused_before_any_event(scripted, ask) -> None:
    engine = scripted(REPLY, max_model_len=2000)
    with pytest.raises(PromptTooLong) as refused:
        await anext(ask(engine, Question("汉" * 3000)))
    assert refused.value.prompt_tokens > refused.value.max_model_len == 2000
    assert engine.submitted == []
    await every(ask(engine))


async def test_the_sources_come_while_the_model_still_waits(scripted, ask) -> None:
    engine = scripted(REPLY)
    engine.gate = Gate()
    events = ask(engine)
    assert isinstance(await anext(events), Sources)
    assert engine.unfinished == 1
    engine.gate.set()
    assert isinstance([event async for event in events][-1], Done)


async def test_the_conversation_is_in_the_prompt_and_in_the_search(scripted, ask, tokenizer) -> None:
    engine = scripted("When does the canteen open?", REPLY)
    sources, _, _ = await every(ask(engine, Question("And when?", HISTORY, instructions="Rhyme."), REWRITES))
    assert sources.question == "When does the canteen open?"
    prompt = tokenizer.decode(engine.submitted[1].prompt_ids)
    assert "user\nWhere is the canteen?<|im_end|>\n<|im_start|>assistant\nIn the cellar.<|im_end|>" in prompt
    assert prompt.endswith("And when?<|im_end|>\n<|im_start|>assistant\n")
    assert "\n\nRhyme.<|im_end|>" in prompt


@pytest.mark.parametrize("number", [1, 2, 4])
async def test_closing_after_any_event_ends_the_generation(scripted, ask, number: int) -> None:
    engine = scripted(REPLY)
    events = ask(engine)
    for _ in range(number):
        await anext(events)
    assert engine.unfinished == 1
    await events.aclose()
    await settled(engine)


async def test_cancelling_while_the_model_answers_ends_the_generation(scripted, ask) -> None:
    engine = scripted(REPLY)
    engine.gate, engine.before_gate = Gate(), 1
    events = ask(engine)
    assert isinstance(await anext(events), Sources)
    assert isinstance(await anext(events), Token)
    await cancelled(events, engine.gate.reached.wait())
    await settled(engine)


async def test_cancelling_while_the_follow_up_is_rewritten_ends_that(scripted, ask) -> None:
    engine = scripted("When does the canteen open?", REPLY)
    engine.gate = Gate()
    await cancelled(ask(engine, Question("And when?", HISTORY), REWRITES), engine.gate.reached.wait())
    await settled(engine)
    assert len(engine.submitted) == 1


async def test_cancelling_while_passages_are_searched_for_asks_no_model(scripted, ask, knowledge_base, blocked) -> None:
    engine = scripted(REPLY)
    retriever = HybridRetriever(knowledge_base=knowledge_base, embedder=blocked)
    await cancelled(ask(engine, retriever=retriever), asyncio.to_thread(blocked.entered.wait, 60))
    blocked.released.set()
    assert engine.submitted == []


async def test_an_engine_that_fails_after_tokens_raises_after_them(scripted, ask) -> None:
    engine = scripted(EngineUnavailable("died"))
    seen = []
    with pytest.raises(EngineUnavailable, match="died"):
        async for event in ask(engine):
            seen.append(event)
    assert [type(event) for event in seen] == [Sources, Token]
    await settled(engine)


async def test_an_engine_that_stops_breaks_the_answer_off(scripted, ask) -> None:
    engine = scripted(REPLY)
    engine.gate, engine.before_gate = Gate(), 1
    events = ask(engine)
    await anext(events)
    await anext(events)
    await engine.stop_accepting()
    with pytest.raises(EngineStopping, match="broken off"):
        await anext(events)
    await settled(engine)


async def test_a_failing_search_raises_before_any_event(scripted, ask, knowledge_base, embedder, monkeypatch) -> None:
    def fail(text: str) -> Any:
        raise RuntimeError("no vectors today")

    monkeypatch.setattr(embedder, "embed_query", fail)
    engine = scripted(REPLY)
    with pytest.raises(RuntimeError, match="no vectors today"):
        await anext(ask(engine, retriever=HybridRetriever(knowledge_base=knowledge_base, embedder=embedder)))
    assert engine.submitted == []


@pytest.mark.parametrize(
    "chat",
    [
        GenericFakeChatModel(messages=iter(["When does the canteen open?", REPLY])),
        FakeListChatModel(responses=["When does the canteen open?", REPLY]),
    ],
    ids=["generic", "list"],
)
async def test_any_other_chat_model_answers_too(ask, chat: BaseChatModel) -> None:
    sources, text, done = await every(ask(chat, Question("And when?", HISTORY), REWRITES))
    assert sources.question == "When does the canteen open?"
    assert sources.prompt.tokens is None
    assert text == done.answer
    assert (done.answer, done.finish_reason) == ("The canteen opens at noon.", "stop")
    assert [citation.file for citation in done.citations] == ["canteen.txt"]


async def cancelled(events: AsyncGenerator[Event, None], reached: Any) -> None:
    """Cancel the next event once the turn has got to a place."""
    step = asyncio.ensure_future(anext(events))
    async with asyncio.timeout(60):
        await reached
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step


async def settled(engine: ScriptedEngine) -> None:
    """Nothing is left on the engine."""
    assert engine.unfinished == 0
