"""The same turn as a LangChain Runnable."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing, contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import convert_to_messages
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableGenerator
from langchain_core.runnables.utils import AddableDict

from llm.bridge import LoopThread, iterate_blocking, refuse_on, wait_for
from rag.answer import Done, Event, Question, Sources, answer
from rag.conversation import Conversations
from rag.grounding import GroundingOptions
from rag.profile import AnswerOptions


def rag_chain(
    chat: BaseChatModel,
    retriever: BaseRetriever,
    options: AnswerOptions | None = None,
    grounding: GroundingOptions | None = None,
) -> Runnable:
    """A Runnable from a question to `{"context", "answer", "citations", "grounding", "finish_reason", "usage", …}`.

    The input is a string, or a dict with `question` and, optionally, `history` (messages in any form that LangChain
    takes), keywords of the chat model's call under `sampling`, and `grounding` (strict, balanced or open). `.stream`
    and `.astream` yield dicts that add up to what `.invoke` returns: first `context` (the passages as Documents), then
    pieces of `answer`, without the model's marks, then the rest, `timings` and `model` too. Any chat model will do.
    """
    parameters = getattr(getattr(chat, "engine", None), "parameters", None)
    profile = (options or AnswerOptions()).profile_for(parameters)
    turn = partial(
        answer, chat=chat, retriever=retriever, profile=profile, conversations=Conversations(), grounding=grounding
    )

    async def stream(inputs: AsyncIterator[Any]) -> AsyncIterator[AddableDict]:
        async for given in inputs:
            async with aclosing(turn(_question(given))) as events:
                async for event in events:
                    yield _piece(event)

    def stream_blocking(inputs: Iterator[Any]) -> Iterator[AddableDict]:
        for given in inputs:
            with _loop_of(chat) as loop, closing(iterate_blocking(turn(_question(given)), loop)) as events:
                yield from map(_piece, events)

    return _Turns(chat, stream_blocking, stream)


class _Turns(RunnableGenerator):
    """Runs a batch's turns on the loop that answers, so that the engine has them all at once: LangChain's threads would
    be few, and on that loop itself wait for ever."""

    def __init__(self, chat: BaseChatModel, *stream: Any) -> None:
        super().__init__(*stream, name="rag_chain")
        self._chat = chat

    def batch(self, inputs: list[Any], config: Any = None, **options: Any) -> list[Any]:
        """The results in the inputs' order."""
        with _loop_of(self._chat) as loop:
            return wait_for(self.abatch(inputs, config, **options), loop)

    def batch_as_completed(self, inputs: Any, config: Any = None, **options: Any) -> Iterator[tuple[int, Any]]:
        """LangChain's; refused on the engine's own loop."""
        if engine := getattr(self._chat, "engine", None):
            refuse_on(engine.loop)
        return super().batch_as_completed(inputs, config, **options)


@contextmanager
def _loop_of(chat: BaseChatModel) -> Iterator[asyncio.AbstractEventLoop]:
    """Where a blocking call's turn runs: the engine's loop, which refuses a call from itself, or a new one."""
    if engine := getattr(chat, "engine", None):
        yield engine.loop
        return
    with LoopThread() as thread:
        yield thread.loop


def _question(given: Any) -> Question:
    if isinstance(given, str):
        return Question(given)
    unknown = set(given) - {"question", "history", "sampling", "grounding"}
    if unknown or "question" not in given:
        raise ValueError(f"rag_chain takes question, history, sampling and grounding, not {sorted(given)}")
    return Question(
        given["question"],
        convert_to_messages(given.get("history", [])),
        sampling=given.get("sampling", {}),
        grounding=given.get("grounding"),
    )


def _piece(event: Event) -> AddableDict:
    if isinstance(event, Sources):
        return AddableDict(
            context=event.passages,
            sources=dict(event.prompt.sources),
            searched=event.searched,
            dropped=event.prompt.dropped,
            answer="",
        )
    if isinstance(event, Done):
        rest = {
            name: value for name, value in asdict(event).items() if name not in ("answer", "citations", "grounding")
        }
        return AddableDict(citations=event.citations, grounding=event.grounding, **rest)
    return AddableDict(answer=event.text)
