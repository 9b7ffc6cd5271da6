"""The chain as a part of other people's LangChain code: histories, callbacks, events, batches, fallbacks, any model."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from uuid import UUID

import openai
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnablePick
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_openai import ChatOpenAI

from llm.bridge import LoopThread, SyncCallOnLoop
from llm.chat import ChatVLLM
from llm.protocol import EngineBusy
from rag.chain import rag_chain
from rag.profile import AnswerOptions
from tests.fakes import ScriptedEngine
from tests.rag.conftest import Gate
from tests.remote_server import MODEL, RemoteServer
from tests.server import serving, until

QUESTION = "When does the canteen open?"
REPLY = "The canteen opens at noon [1]."
ANSWER = "The canteen opens at noon."
"""The reply without its mark, which is proven by the citation instead."""
Ask = Callable[..., Awaitable[Any]]


@pytest.fixture
def engine(scripted) -> Iterator[ScriptedEngine]:
    """On a loop of its own, as `Engine.start_in_thread` has it."""
    engine = scripted(REPLY)
    with LoopThread() as thread:
        engine.loop = thread.loop
        yield engine


@pytest.fixture
def chain(engine, retriever) -> Runnable:
    return rag_chain(ChatVLLM(engine=engine), retriever)


def added(pieces: list[Any]) -> Any:
    whole, *rest = pieces
    for piece in rest:
        whole = whole + piece
    return whole


async def invoked(chain: Runnable, *args: Any, **kwargs: Any) -> Any:
    return await asyncio.to_thread(chain.invoke, *args, **kwargs)


async def ainvoked(chain: Runnable, *args: Any, **kwargs: Any) -> Any:
    return await chain.ainvoke(*args, **kwargs)


async def streamed(chain: Runnable, *args: Any, **kwargs: Any) -> Any:
    return await asyncio.to_thread(lambda: added(list(chain.stream(*args, **kwargs))))


async def astreamed(chain: Runnable, *args: Any, **kwargs: Any) -> Any:
    return added([piece async for piece in chain.astream(*args, **kwargs)])


every_way = pytest.mark.parametrize("ask", [invoked, ainvoked, streamed, astreamed])


@pytest.mark.filterwarnings("ignore:.*(RunnableWithMessageHistory|InMemoryChatMessageHistory)")  # many use it still
@every_way
async def test_a_message_history_keeps_the_conversation_and_its_passages(chain, engine, tokenizer, ask: Ask) -> None:
    histories: dict[str, InMemoryChatMessageHistory] = {}

    def history_of(session_id: str) -> InMemoryChatMessageHistory:
        return histories.setdefault(session_id, InMemoryChatMessageHistory())

    talk = RunnableWithMessageHistory(
        chain,
        history_of,
        input_messages_key="question",
        history_messages_key="history",
        output_messages_key="answer",
    )
    first = {"configurable": {"session_id": "first"}}
    await ask(talk, {"question": QUESTION}, config=first)
    later = await ask(talk, {"question": "那病假呢？"}, config=first)
    await ask(talk, {"question": QUESTION}, config={"configurable": {"session_id": "second"}})

    said = [HumanMessage(QUESTION), AIMessage(ANSWER), HumanMessage("那病假呢？"), AIMessage(ANSWER)]
    assert [(message.type, message.text) for message in histories["first"].messages] == [
        (message.type, message.text) for message in said
    ]
    assert len(histories["second"].messages) == 2
    prompts = [tokenizer.decode(request.prompt_ids) for request in engine.submitted]
    assert prompts[1].startswith(prompts[0] + REPLY)
    assert prompts[2] == prompts[0]
    assert "sick-zh.txt" in [document.metadata["source"] for document in later["context"]]
    assert f"{QUESTION}\n{ANSWER}\n那病假呢？" in later["searched"]


class Runs(BaseCallbackHandler):
    """What ran, and in which run."""

    def __init__(self) -> None:
        self.parents: dict[str, str | None] = {}
        self._names: dict[UUID, str] = {}

    def _began(self, name: str, run_id: UUID, parent_run_id: UUID | None) -> None:
        self._names[run_id] = name
        self.parents[name] = self._names[parent_run_id] if parent_run_id else None

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._began(kwargs.get("name") or "chain", run_id, kwargs.get("parent_run_id"))

    def on_retriever_start(self, serialized: Any, query: str, *, run_id: UUID, **kwargs: Any) -> None:
        self._began("retriever", run_id, kwargs.get("parent_run_id"))

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._began("model", run_id, kwargs.get("parent_run_id"))


@every_way
async def test_the_search_and_the_model_are_runs_inside_the_chains_run(chain, ask: Ask) -> None:
    runs = Runs()
    await ask(chain, QUESTION, config={"callbacks": [runs]})
    assert runs.parents == {"rag_chain": None, "retriever": "rag_chain", "model": "rag_chain"}


async def test_events_tell_of_the_search_the_models_tokens_and_the_chains_pieces(chain) -> None:
    events = [event async for event in chain.astream_events(QUESTION, version="v2")]
    kinds = list(dict.fromkeys(event["event"] for event in events))
    assert kinds[:3] == ["on_chain_start", "on_retriever_start", "on_retriever_end"]
    assert {"on_chat_model_start", "on_chat_model_stream", "on_chat_model_end"} <= {*kinds}
    pieces = [event["data"]["chunk"] for event in events if event["event"] == "on_chain_stream"]
    assert added(pieces)["answer"] == ANSWER
    assert events[-1]["event"] == "on_chain_end" and events[-1]["name"] == "rag_chain"


async def test_events_tell_a_follow_ups_rewrite_from_the_answer(engine, retriever) -> None:
    engine.replies = ["How many days of sick leave?", REPLY]
    chain = rag_chain(ChatVLLM(engine=engine), retriever, AnswerOptions(follow_up="rewrite"))
    asked = {"question": "And sick leave?", "history": [("human", "Annual leave?"), ("ai", "25 days.")]}
    events = [event async for event in chain.astream_events(asked, version="v2")]
    texts = {"rewrite_follow_up": "", "ChatVLLM": ""}
    for event in events:
        if event["event"] == "on_chat_model_stream":
            texts[event["name"]] += event["data"]["chunk"].text
    assert texts == {"rewrite_follow_up": "How many days of sick leave?", "ChatVLLM": REPLY}


@pytest.mark.parametrize("how", ["batch", "abatch"])
async def test_the_turns_of_a_batch_run_at_the_same_time_and_keep_their_order(
    scripted, engine, chain, how: str
) -> None:
    engine.gate = Gate()
    questions = ["Who approves travel?", QUESTION, "年假有几天？"] * 20
    batch = chain.abatch(questions) if how == "abatch" else asyncio.to_thread(chain.batch, questions)
    running = asyncio.ensure_future(batch)
    await until(lambda: engine.unfinished == 60)
    engine.loop.call_soon_threadsafe(engine.gate.set)
    first = [result["context"][0].metadata["source"] for result in await running]
    assert first == ["travel.md", "canteen.txt", "annual-zh.txt"] * 20


@pytest.mark.timeout(20)
async def test_a_batch_on_the_engines_own_loop_is_refused_in_a_plain_sentence(scripted, retriever) -> None:
    engine = scripted(REPLY)
    engine.loop = asyncio.get_running_loop()
    chain = rag_chain(ChatVLLM(engine=engine), retriever)
    with pytest.raises(SyncCallOnLoop, match="use ainvoke or astream"):
        chain.batch([QUESTION] * 2)
    with pytest.raises(SyncCallOnLoop, match="use ainvoke or astream"):
        list(chain.batch_as_completed([QUESTION] * 2))


@every_way
async def test_a_fallback_answers_when_the_model_takes_nothing(scripted, engine, retriever, ask: Ask) -> None:
    busy = scripted()
    busy.loop, busy.refusal = engine.loop, EngineBusy("full")
    other = rag_chain(ChatVLLM(engine=engine), retriever)
    chain = rag_chain(ChatVLLM(engine=busy), retriever).with_fallbacks([other], exceptions_to_handle=(EngineBusy,))
    assert (await ask(chain, QUESTION))["answer"] == ANSWER
    assert len(engine.submitted) == 1


@every_way
async def test_chat_openai_answers_in_place_of_our_model(retriever, ask: Ask) -> None:
    server = RemoteServer(words=("The canteen ", "opens ", "at noon ", "[1]."))
    async with serving(server.app()) as address:
        chat = ChatOpenAI(
            base_url=f"{address}/v1",
            model=MODEL,
            api_key="none",
            max_retries=0,
            http_client=openai.DefaultHttpxClient(headers={"Connection": "close"}),
            http_async_client=openai.DefaultAsyncHttpxClient(headers={"Connection": "close"}),
            stream_usage=True,
        )
        chain = rag_chain(chat, retriever)
        result = await ask(chain, {"question": QUESTION, "history": [("human", "Hello"), ("ai", "Hello.")]})
    assert result["answer"] == ANSWER
    assert [citation.quote for citation in result["citations"]] == ["The canteen opens at noon."]
    assert result["usage"]["prompt_tokens"] == server.prompt_tokens
    roles = [message["role"] for message in server.received[0]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]


BRACES = '配置 {"key": "{value}"} 与 {0} {} {{x}} {% raw %} {{ question }}'


@every_way
async def test_braces_stay_as_they_are_in_question_history_and_answer(scripted, engine, chain, tokenizer, ask) -> None:
    engine.replies = [BRACES]
    result = await ask(chain, {"question": BRACES, "history": [("human", BRACES), AIMessage(BRACES)]})
    assert result["answer"] == BRACES
    assert tokenizer.decode(engine.submitted[0].prompt_ids).count(BRACES) == 3


def test_a_result_says_what_was_searched_for_and_what_had_to_stay_out(chain) -> None:
    result = chain.invoke({"question": "And when?", "history": [("human", "Where is the canteen?"), ("ai", "Below.")]})
    assert result["searched"] == ["Where is the canteen?\nBelow.\nAnd when?"]
    assert result["dropped"] == {"dropped_turns": 0, "dropped_passages": 0, "shortened": False}
    assert [*result["sources"].values()] == result["context"]
    assert (chain | RunnablePick("dropped")).invoke(QUESTION) == result["dropped"]
