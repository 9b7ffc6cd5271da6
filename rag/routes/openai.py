"""The same turn in the shape of OpenAI's chat completions; `model@handbook` names a knowledge base."""

import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import asdict
from typing import Any, Literal

from fastapi import APIRouter, Request
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel, Field
from starlette.responses import Response

from llm.options import SamplingOptions
from rag.answer import Done, Event, Question, Sources, Token
from rag.errors import status_and_body
from rag.grounding import Mode
from rag.schemas import Searching, Text, sources
from rag.service import Service
from rag.streaming import EventStream, encode, first_of, while_connected

router = APIRouter(prefix="/v1")


class Part(BaseModel):
    """A part of a message's content; only text is read."""

    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """A message of an OpenAI client."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[Part] | None = None

    @property
    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(BaseModel):
    """OpenAI's `stream_options`."""

    include_usage: bool = False


class ChatCompletionRequest(Searching):
    """Body of `POST /v1/chat/completions`; fields it does not name are ignored, as OpenAI clients send many.

    `grounding` and the fields of the search are extensions of ours, as are `sources` and `grounding` in the answer.
    """

    model: Text = ""
    messages: list[Message] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: Literal[1] = 1
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Text | list[Text] | None = None
    grounding: Mode | None = None

    def as_question(self) -> Question:
        """The last user message is the question, what stands before it the conversation."""
        system = [message.text for message in self.messages if message.role in ("system", "developer")]
        turns = [message for message in self.messages if message.role in ("user", "assistant")]
        last = max((at for at, message in enumerate(turns) if message.role == "user"), default=-1)
        history = [
            HumanMessage(message.text) if message.role == "user" else AIMessage(message.text)
            for message in turns[:last]
        ]
        text = turns[last].text if last >= 0 else ""
        return Question(
            text,
            history,
            instructions="\n\n".join(system),
            sampling=self._sampling(),
            search=self.search,
            grounding=self.grounding,
        )

    def _sampling(self) -> dict[str, Any]:
        given = {name: value for name, value in self if name in SamplingOptions.model_fields and value is not None}
        if self.max_completion_tokens:
            given["max_tokens"] = self.max_completion_tokens
        if isinstance(self.stop, str):
            given["stop"] = [self.stop]
        return given


@router.post("/chat/completions", response_model=None)
async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response | dict[str, Any]:
    """Answer the last user message from a knowledge base, streamed or whole."""
    service: Service = request.app.state.service
    knowledge_base = body.model.rpartition("@")[2] if "@" in body.model else service.default_knowledge_base
    events = service.answer(knowledge_base, body.as_question())
    shape = _Shape(body.model or service.engine.model)
    if body.stream:
        first = await first_of(events, request.receive)
        write = shape.writer(include_usage=body.stream_options.include_usage)
        return EventStream(first, events, write=write, failed=_failed)
    return await while_connected(request.receive, shape.whole(events))


class _Shape:
    """One completion: its id, time and model stand in the whole answer and in every chunk."""

    def __init__(self, model: str) -> None:
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    async def whole(self, events: AsyncGenerator[Event, None]) -> dict[str, Any]:
        """The answer as one object, its text without the model's marks, as in the stream."""
        about = dict[str, Any]()
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Sources):
                    about = _about(event)
                elif isinstance(event, Done):
                    done = event
        message = {"role": "assistant", "content": done.answer, "refusal": None, "annotations": _annotations(done)}
        choice = {"index": 0, "message": message, "finish_reason": _finish_reason(done), "logprobs": None}
        head = {**self._head, "object": "chat.completion"}
        about["grounding"] = asdict(done.grounding)
        return {**head, "choices": [choice], "usage": _usage(done), **about}

    def writer(self, *, include_usage: bool) -> Callable[[Event], bytes]:
        """What an event is on the wire; the last one closes the choice, and the stream with `[DONE]`."""

        def write(event: Event) -> bytes:
            if isinstance(event, Sources):
                return self._chunk({"role": "assistant", "content": ""}, **_about(event))
            if isinstance(event, Token):
                return self._chunk({"content": event.text})
            annotated, reason = {"annotations": _annotations(event)}, _finish_reason(event)
            last = self._chunk(annotated, finish_reason=reason, grounding=asdict(event.grounding))
            usage = encode(self._chunk_of([], usage=_usage(event))) if include_usage else b""
            return last + usage + b"data: [DONE]\n\n"

        return write

    def _chunk(self, delta: dict[str, Any], *, finish_reason: str | None = None, **more: Any) -> bytes:
        return encode(self._chunk_of([{"index": 0, "delta": delta, "finish_reason": finish_reason}], **more))

    def _chunk_of(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk", "choices": choices, **more}


def _about(event: Sources) -> dict[str, Any]:
    """Groundwell's own fields: the sources, and what had to stay out of the prompt."""
    return {"sources": sources(event), **event.prompt.dropped}


def _annotations(done: Done) -> list[dict[str, Any]]:
    return [{"type": "file_citation", **asdict(citation)} for citation in done.citations]


def _finish_reason(done: Done) -> str:
    return "length" if done.finish_reason == "length" else "stop"  # OpenAI knows no repetition and no refusal of ours


def _usage(done: Done) -> dict[str, Any]:
    usage: dict[str, Any] = dict(done.usage)
    usage["prompt_tokens_details"] = {"cached_tokens": usage.pop("cached_tokens")}
    return usage


def _failed(error: Exception) -> bytes:
    return encode(status_and_body(error)[1])
