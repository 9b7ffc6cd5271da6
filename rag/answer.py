"""One turn: condense → retrieve → prompt → stream → cite."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.retrievers import BaseRetriever

from rag.citations import Citation, Citing, given_out
from rag.condense import searches
from rag.conversation import Conversation, Conversations
from rag.counting import TokenCounter
from rag.grounding import RULES, Grounding, GroundingOptions, Mode, answerable, judge, reply_without_model
from rag.likelihood import likelihood
from rag.nearest import nearest_sentence
from rag.profile import Profile
from rag.prompt import Prompt, build_prompt, unsent
from rag.search import search
from rag.sentences import until_repetition

NO_USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "cached_tokens": 0}


class EmptyQuestion(ValueError):
    """There is nothing to answer."""


@dataclass(frozen=True)
class Question:
    """What is asked in one turn: the words, the conversation so far, and what the caller wants otherwise."""

    text: str
    history: Sequence[BaseMessage] = ()
    instructions: str = ""
    """Text that joins the system prompt, such as an OpenAI client's system message."""
    scope: str = ""
    """What the search is limited to, such as the knowledge base's name: conversations in two scopes do not mix."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """Keywords of the chat model's call, such as temperature or max_tokens; the profile's where absent."""
    search: dict[str, Any] = field(default_factory=dict)
    """Keywords of the retriever's call: k, score_threshold, filter; its own where absent."""
    grounding: Mode | None = None
    """How strictly the answer keeps to the documents; None: as the options say."""


@dataclass(frozen=True)
class Sources:
    """First event: the passages found, best first. The engine has admitted the request."""

    question: str
    """What was searched for; of several texts, the one that brought the best passage."""
    searched: list[str]
    """All texts that were searched for: an earlier turn with the follow-up, say."""
    passages: list[Document]
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True)
class Done:
    """Last event: the whole answer without marks, what supports it, what it cost (times in seconds)."""

    answer: str
    finish_reason: str
    citations: list[Citation]
    grounding: Grounding
    usage: dict[str, int]
    timings: dict[str, float]
    model: str


Event = Sources | Token | Done


async def answer(
    question: Question,
    *,
    chat: BaseChatModel,
    retriever: BaseRetriever,
    profile: Profile,
    conversations: Conversations,
    grounding: GroundingOptions | None = None,
) -> AsyncGenerator[Event, None]:
    """Answer one question. Nothing is yielded before the chat model has taken the request, if it is asked at all.

    `conversations` are those of this service or chain: what their turns were sent is sent again. Closing or cancelling
    at any point stops what runs: condensing, retrieval, a place in the queue, generation.
    Raises EmptyQuestion, PromptTooLong, and what the chat model and the retriever raise.
    """
    clock = _Clock()
    texts, searched, passages = await _found(question, chat, retriever, profile, clock)
    conversation = conversations.recall(question.history, scope=question.scope)
    options = grounding or GroundingOptions()
    mode = question.grounding or options.mode
    cut = (mode == "strict" and options.unsupported == "cut") or (mode == "balanced" and profile.quotes)
    if fixed := await _fixed(question, searched, passages, retriever, options, mode, cut=cut):
        yield Sources(searched, texts, passages, unsent(passages, conversation))
        yield Token(fixed)
        yield _done(Citing({}), _Reply(), clock, mode, instead=fixed)
        return
    counter = TokenCounter.of(chat, conversations.lengths)
    prompt = await asyncio.to_thread(_prompt, question, passages, conversation, counter, profile, RULES[mode])
    conversations.remember(conversation, question.text, prompt.sent)
    clock.lap("prompt")
    reply = _Reply()
    citing = Citing(prompt.sources, cut=cut)
    async with aclosing(_chunks(chat, prompt, {"max_tokens": profile.max_tokens, **question.sampling})) as chunks:
        reply.add(await anext(chunks, None))
        yield Sources(searched, texts, passages, prompt)
        pieces = reply.texts(chunks, stop_at_repetition=profile.stop_at_repetition)
        async with aclosing(given_out(citing, pieces)) as shown:
            async for text in shown:
                clock.first_token()
                yield Token(text)
    refusal: str | None = None
    if cut and not citing.answer:
        quotes = profile.quotes and answerable(searched, passages, options.bar)
        quoted = await asyncio.to_thread(_quoted, citing, searched, prompt.sources, retriever) if quotes else ""
        refusal = None if quoted else options.refusal(question.text)
        clock.first_token()
        yield Token(quoted or str(refusal))
    final = refusal or citing.answer
    conversations.answered(conversation, question.text, final if cut else citing.written, shown=final)
    yield _done(citing, reply, clock, mode, instead=refusal)


async def _found(
    question: Question, chat: BaseChatModel, retriever: BaseRetriever, profile: Profile, clock: "_Clock"
) -> tuple[list[str], str, list[Document]]:
    """All that is searched for, of it what the best passages were found for, and these."""
    if not question.text.strip():
        raise EmptyQuestion("the question is empty")
    texts = await searches(question.text, question.history, chat=chat, profile=profile)
    clock.lap("condense")
    searched, passages = await search(texts, retriever, **question.search)
    clock.lap("retrieve")
    return texts, searched, passages


async def _fixed(
    question: Question,
    searched: str,
    passages: list[Document],
    retriever: BaseRetriever,
    options: GroundingOptions,
    mode: Mode,
    *,
    cut: bool,
) -> str | None:
    """What is answered without the chat model."""
    refuses = mode == "strict" or (mode == "balanced" and not passages and not question.history)
    if not (cut or refuses):
        return None
    likely = 1.0
    if mode == "strict" and options.likelihood:
        # A follow-up is searched for with a turn before it, whose words may be elsewhere.
        told = [await asyncio.to_thread(likelihood, text, passages, retriever) for text in {searched, question.text}]
        likely = max(told)
    return reply_without_model(question.text, searched, passages, options, refuses=refuses, likelihood=likely)


def _quoted(citing: Citing, searched: str, sources: Mapping[int, Document], retriever: BaseRetriever) -> str:
    """The nearest sentence of the sources as the answer; empty where they hold none."""
    found = nearest_sentence(searched, sources, retriever)
    return citing.quote(found.source, found.start, found.end) if found else ""


def _done(citing: Citing, reply: "_Reply", clock: "_Clock", mode: Mode, *, instead: str | None) -> Done:
    """The last event; `instead` is what is said where no answer is left."""
    # The only reason to leave the stream before its end is a repetition; a quotation is whole, whatever came before it.
    reason = "stop" if citing.quoted else reply.finish_reason or "repetition"
    return Done(
        instead or citing.answer,
        "refusal" if instead else reason,
        citing.citations,
        judge(mode, citing.sentences, citing.unverified, refused=bool(instead)),
        reply.usage,
        clock.timings,
        reply.model,
    )


def _prompt(
    question: Question,
    passages: list[Document],
    conversation: Conversation,
    counter: TokenCounter | None,
    profile: Profile,
    rule: str,
) -> Prompt:
    return build_prompt(
        question.text,
        passages,
        conversation,
        profile=profile,
        counter=counter,
        max_tokens=question.sampling.get("max_tokens") or profile.max_tokens,
        instructions="\n\n".join(filter(None, [rule, question.instructions])),
    )


def _chunks(chat: BaseChatModel, prompt: Prompt, options: dict[str, Any]) -> AsyncGenerator[AIMessageChunk, None]:
    return chat.astream(prompt.messages, **options)  # type: ignore[return-value]  # it is an async generator


class _Reply:
    """What the chat model has said so far, and what it cost."""

    def __init__(self) -> None:
        self.model = ""
        self.usage = dict(NO_USAGE)
        self.finish_reason: str | None = None
        self._first_text = ""

    def add(self, chunk: AIMessageChunk | None) -> None:
        """Take the first chunk, which only ChatVLLM sends before there is text."""
        self._first_text = self._take(chunk) if chunk else ""

    def texts(self, chunks: AsyncIterator[AIMessageChunk], *, stop_at_repetition: bool) -> AsyncGenerator[str, None]:
        """The pieces of text that are not empty."""
        return until_repetition(self._texts(chunks)) if stop_at_repetition else self._texts(chunks)

    async def _texts(self, chunks: AsyncIterator[AIMessageChunk]) -> AsyncGenerator[str, None]:
        if self._first_text:
            yield self._first_text
        async for chunk in chunks:
            if text := self._take(chunk):
                yield text
        self.finish_reason = self.finish_reason or "stop"  # not every chat model says why it ended

    def _take(self, chunk: AIMessageChunk) -> str:
        self.model += chunk.response_metadata.get("model_name", "")
        self.finish_reason = chunk.response_metadata.get("finish_reason") or self.finish_reason
        if used := chunk.usage_metadata:
            self.usage["prompt_tokens"] += used["input_tokens"]
            self.usage["completion_tokens"] += used["output_tokens"]
            self.usage["total_tokens"] += used["total_tokens"]
            self.usage["cached_tokens"] += used.get("input_token_details", {}).get("cache_read", 0)
        return str(chunk.text)


class _Clock:
    """Seconds of each stage, from the start of the turn."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self._laps[stage], self._last = now - self._last, now

    def first_token(self) -> None:
        self._laps.setdefault("first_token", time.perf_counter() - self._start)

    @property
    def timings(self) -> dict[str, float]:
        total = time.perf_counter() - self._start
        return {stage: round(seconds, 4) for stage, seconds in [*self._laps.items(), ("total", total)]}
