"""The questions asked, several at a time: of the whole turn as the service takes it, or of its search alone."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from langchain_core.documents import Document

from rag.answer import Done, Question, Sources, answer
from rag.condense import searches
from rag.errors import TABLE
from rag.evaluation.cases import Case
from rag.profile import Profile
from rag.retriever import HybridRetriever
from rag.search import search
from rag.service import Service


@dataclass(frozen=True)
class Turn:
    """What came of one question; times in seconds."""

    searched: str
    passages: list[Document]
    timings: dict[str, float]
    done: Done | None = None
    """None where the search alone was asked for."""
    error: str = ""
    """Why the question was refused."""


Ask = Callable[[Case, int], Awaitable[Turn]]


async def ask_all(cases: Sequence[Case], ask: Ask, *, at_once: int, tell: Callable[[], object]) -> list[Turn]:
    """The turn of each case, in their order; `tell` hears of each that has ended.

    A question that is refused, one too long for the window say, is a turn with an error. Raises what else goes wrong.
    """
    gate = asyncio.Semaphore(at_once)

    async def one(case: Case, number: int) -> Turn:
        async with gate:
            try:
                return await ask(case, number)
            except Exception as error:
                if TABLE.get(type(error), (500, ""))[0] >= 500:
                    raise
                return Turn("", [], {}, error=str(error))
            finally:
                tell()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(case, number)) for number, case in enumerate(cases)]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def of_service(service: Service, retriever: HybridRetriever) -> Ask:
    """Whole turns. Each is a conversation of its own: what another was sent is not known in it."""

    async def ask(case: Case, number: int) -> Turn:
        history = [turn.as_message() for turn in case.history]
        events = answer(
            Question(case.question, history, scope=str(number)),
            chat=service.chat,
            retriever=retriever,
            profile=service.profile,
            conversations=service.conversations,
            grounding=service.grounding,
        )
        sources = done = None
        async with aclosing(events):
            async for event in events:
                sources = event if isinstance(event, Sources) else sources
                done = event if isinstance(event, Done) else done
        assert sources and done
        return Turn(sources.question, sources.passages, done.timings, done)

    return ask


def of_retriever(retriever: HybridRetriever, profile: Profile) -> Ask:
    """Searches as a turn begins with. There is no model that could rewrite a follow-up."""

    async def ask(case: Case, number: int) -> Turn:
        history = [turn.as_message() for turn in case.history]
        began = time.perf_counter()
        texts = await searches(case.question, history, chat=None, profile=profile)  # type: ignore[arg-type]
        searching = time.perf_counter()
        searched, passages = await search(texts, retriever)
        ended = time.perf_counter()
        return Turn(searched, passages, {"condense": searching - began, "retrieve": ended - searching})

    return ask
