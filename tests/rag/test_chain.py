import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePick

from llm.bridge import LoopThread, SyncCallOnLoop
from llm.chat import ChatVLLM
from llm.protocol import EngineUnavailable
from rag.answer import EmptyQuestion
from rag.chain import rag_chain
from rag.profile import AnswerOptions
from tests.fakes import ScriptedEngine
from tests.rag.conftest import Gate

QUESTION = "When does the canteen open?"
REPLY = "The canteen opens at noon [1]."
ANSWER = "The canteen opens at noon."
KEYS = {
    "context",
    "sources",
    "searched",
    "dropped",
    "answer",
    "citations",
    "grounding",
    "finish_reason",
    "usage",
    "timings",
    "model",
}


@pytest.fixture
def engine_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop in a thread, as `Engine.start_in_thread` has."""
    with LoopThread() as thread:
        yield thread.loop


@pytest.fixture
def engine(scripted, engine_loop) -> ScriptedEngine:
    engine = scripted(REPLY)
    engine.loop = engine_loop
    return engine


@pytest.fixture
def chain(engine, retriever) -> Runnable:
    return rag_chain(ChatVLLM(engine=engine), retriever)


def untimed(result: dict[str, Any]) -> dict[str, Any]:
    assert result.keys() == KEYS
    return {name: value for name, value in result.items() if name != "timings"}


def added(pieces: list[Any]) -> Any:
    whole, *rest = pieces
    for piece in rest:
        whole = whole + piece
    return whole


def test_invoke_gives_the_whole_turn(chain, engine) -> None:
    result = chain.invoke(QUESTION)
    assert result.keys() == KEYS
    assert result["context"][0].metadata["source"] == "canteen.txt"
    assert result["answer"] == ANSWER
    assert [citation.quote for citation in result["citations"]] == ["The canteen opens at noon."]
    assert result["finish_reason"] == "stop"
    assert result["usage"]["completion_tokens"] == 6
    assert result["timings"]["total"] > 0
    assert engine.unfinished == 0


def test_every_way_of_calling_gives_the_same(chain) -> None:
    async def asynchronously() -> list[dict[str, Any]]:
        streamed = added([piece async for piece in chain.astream(QUESTION)])
        return [await chain.ainvoke(QUESTION), streamed, *await chain.abatch([QUESTION])]

    expected = untimed(chain.invoke(QUESTION))
    streamed = added(list(chain.stream(QUESTION)))
    for result in [streamed, *chain.batch([QUESTION]), *asyncio.run(asynchronously())]:
        assert untimed(result) == expected


def test_the_context_is_streamed_first_then_pieces_of_the_answer_then_the_rest(chain) -> None:
    first, *pieces, last = chain.stream(QUESTION)
    assert first.keys() >= {"context"}
    assert all(piece.keys() == {"answer"} for piece in pieces)
    assert "".join(piece["answer"] for piece in pieces) == ANSWER
    assert last.keys() >= {"citations", "finish_reason", "usage", "timings"}


def test_an_answer_without_a_word_is_an_empty_string(scripted, engine_loop, retriever) -> None:
    engine = scripted("")
    engine.loop = engine_loop
    chain = rag_chain(ChatVLLM(engine=engine), retriever)
    assert chain.invoke(QUESTION)["answer"] == ""
    assert (chain | RunnablePick("answer")).invoke(QUESTION) == ""


@pytest.mark.parametrize(
    "given",
    [
        QUESTION,
        {"question": QUESTION},
        {"question": QUESTION, "history": []},
        {"question": QUESTION, "sampling": {"temperature": 0.0}},
    ],
)
def test_a_string_and_a_dict_ask_the_same(chain, given) -> None:
    assert untimed(chain.invoke(given)) == untimed(chain.invoke(QUESTION))


@pytest.mark.parametrize(
    "history",
    [
        [("human", "Where is the canteen?"), ("ai", "In the cellar.")],
        [("user", "Where is the canteen?"), ("assistant", "In the cellar.")],
        [{"role": "user", "content": "Where is the canteen?"}, {"role": "assistant", "content": "In the cellar."}],
        [HumanMessage("Where is the canteen?"), AIMessage("In the cellar.")],
    ],
)
def test_history_comes_in_any_form_that_langchain_takes(chain, engine, tokenizer, history) -> None:
    chain.invoke({"question": "And when?", "history": history})
    prompt = tokenizer.decode(engine.submitted[-1].prompt_ids)
    assert "user\nWhere is the canteen?<|im_end|>\n<|im_start|>assistant\nIn the cellar.<|im_end|>" in prompt
    assert len(engine.submitted) == 1


def test_sampling_reaches_the_model(chain, engine) -> None:
    result = chain.invoke({"question": QUESTION, "sampling": {"max_tokens": 2, "temperature": 0.5}})
    assert (result["answer"], result["finish_reason"]) == ("The canteen ", "length")
    assert engine.submitted[0].sampling.temperature == 0.5


def test_a_call_chooses_its_grounding_mode(scripted, engine_loop, retriever) -> None:
    engine = scripted(f"{ANSWER} Apples are free.")
    engine.loop = engine_loop
    chain = rag_chain(ChatVLLM(engine=engine), retriever)
    asked = "The canteen opens at noon?"
    answers = {mode: chain.invoke({"question": asked, "grounding": mode}) for mode in ("strict", "balanced", "open")}
    assert {mode: result["answer"] for mode, result in answers.items()} == {
        "strict": ANSWER,
        "balanced": f"{ANSWER} Apples are free.",
        "open": f"{ANSWER} Apples are free.",
    }
    assert {mode: result["grounding"].mode for mode, result in answers.items()} == {mode: mode for mode in answers}
    refused = chain.invoke({"question": "Wo ist der Zeppelin?", "grounding": "strict"})
    assert refused["grounding"].refused and len(engine.submitted) == 3


@pytest.mark.parametrize("given", [{"questoin": QUESTION}, {"question": QUESTION, "k": 3}, {"history": []}, {}])
def test_unknown_or_missing_keys_are_refused(chain, engine, given) -> None:
    with pytest.raises(ValueError, match="takes question, history, sampling and grounding"):
        chain.invoke(given)
    assert engine.submitted == []


def test_failures_come_out_as_they_are(scripted, chain, engine_loop, retriever) -> None:
    with pytest.raises(EmptyQuestion):
        chain.invoke(" ")
    engine = scripted(EngineUnavailable("died"))
    engine.loop = engine_loop
    with pytest.raises(EngineUnavailable, match="died"):
        rag_chain(ChatVLLM(engine=engine), retriever).invoke(QUESTION)


@pytest.mark.parametrize("how", ["batch", "abatch"])
def test_a_batch_keeps_its_order(chain, how: str) -> None:
    questions = ["Who approves travel?", QUESTION, "年假有几天？", "Where do bicycles go?"]
    results = chain.batch(questions) if how == "batch" else asyncio.run(chain.abatch(questions))
    first = [result["context"][0].metadata["source"] for result in results]
    assert first == ["travel.md", "canteen.txt", "annual-zh.txt", "handbook.pdf"]


async def test_ainvoke_works_on_the_engines_own_loop(scripted, retriever) -> None:
    chain = rag_chain(ChatVLLM(engine=scripted(REPLY)), retriever)
    assert (await chain.ainvoke(QUESTION))["answer"] == ANSWER


async def test_invoke_works_from_a_worker_thread(scripted, retriever) -> None:
    engine = scripted(REPLY)
    engine.loop = asyncio.get_running_loop()
    chain = rag_chain(ChatVLLM(engine=engine), retriever)
    assert (await asyncio.to_thread(chain.invoke, QUESTION))["answer"] == ANSWER


async def test_invoke_works_inside_a_running_loop_that_is_not_the_engines(chain) -> None:
    assert chain.invoke(QUESTION)["answer"] == ANSWER


@pytest.mark.timeout(20)
async def test_invoke_on_the_engines_own_loop_says_what_to_call(scripted, retriever) -> None:
    engine = scripted(REPLY)
    engine.loop = asyncio.get_running_loop()
    chain = rag_chain(ChatVLLM(engine=engine), retriever)
    with pytest.raises(SyncCallOnLoop, match="use ainvoke or astream"):
        chain.invoke(QUESTION)


async def test_leaving_an_asynchronous_stream_ends_the_generation(scripted, retriever) -> None:
    engine = scripted(REPLY)
    events = rag_chain(ChatVLLM(engine=engine), retriever).astream(QUESTION)
    await anext(events)
    await anext(events)
    assert engine.unfinished == 1
    await events.aclose()
    assert engine.unfinished == 0


def test_leaving_a_stream_ends_the_generation(chain, engine) -> None:
    pieces = chain.stream(QUESTION)
    next(pieces)
    next(pieces)
    assert engine.unfinished == 1
    pieces.close()
    assert engine.unfinished == 0


async def test_cancelling_ainvoke_ends_the_generation(scripted, retriever) -> None:
    engine = scripted(REPLY)
    engine.gate, engine.before_gate = Gate(), 1
    call = asyncio.create_task(rag_chain(ChatVLLM(engine=engine), retriever).ainvoke(QUESTION))
    async with asyncio.timeout(60):
        await engine.gate.reached.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert engine.unfinished == 0


def test_it_composes_with_other_runnables(chain) -> None:
    asked = RunnableLambda(lambda text: {"question": text}) | chain | RunnablePick("answer")
    assert asked.invoke(QUESTION) == ANSWER
    assert "".join(asked.stream(QUESTION)) == ANSWER
    assert asyncio.run(asked.ainvoke(QUESTION)) == ANSWER
    assert asked.batch([QUESTION, QUESTION]) == [ANSWER, ANSWER]


def test_any_other_chat_model_works(retriever) -> None:
    chain = rag_chain(FakeListChatModel(responses=[REPLY]), retriever)
    expected = untimed(chain.invoke(QUESTION))
    assert expected["answer"] == ANSWER
    assert untimed(asyncio.run(chain.ainvoke(QUESTION))) == expected


def test_the_profile_follows_the_models_size_and_the_options(engine, retriever) -> None:
    engine.replies = ["One. Two. One. Two."]
    engine.parameters = 135_000_000
    chat = ChatVLLM(engine=engine)
    assert rag_chain(chat, retriever).invoke({"question": QUESTION, "grounding": "open"})["answer"] == "One. Two."
    large = rag_chain(chat, retriever, AnswerOptions(profile="large"))
    assert large.invoke(QUESTION)["answer"] == "One. Two. One. Two."
