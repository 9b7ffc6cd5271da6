"""An answer from documents in OpenAI's shape; citations are annotations."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from rag.answer import Done, Event, Sources, Token
from rag.openai_api.wire import DONE, Completion, finish_reason
from rag.schemas import sources


async def whole(completion: Completion, events: AsyncGenerator[Event, None]) -> dict[str, Any]:
    """The answer as one object, its text without the model's marks, as in the stream."""
    about = dict[str, Any]()
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Sources):
                about = _about(event)
            elif isinstance(event, Done):
                done = event
    message = {"role": "assistant", "content": done.answer, "refusal": None, "annotations": _annotations(done)}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason(done.finish_reason), "logprobs": None}
    return completion.whole([choice], _usage(done), **about, grounding=asdict(done.grounding))


def writer(completion: Completion, *, include_usage: bool) -> Callable[[Event], bytes]:
    """What an event is on the wire; the last one closes the choice, and the stream with `[DONE]`."""

    def write(event: Event) -> bytes:
        if isinstance(event, Sources):
            return completion.chunk({"role": "assistant", "content": ""}, **_about(event))
        if isinstance(event, Token):
            return completion.chunk({"content": event.text})
        ended = {"finish_reason": finish_reason(event.finish_reason)}
        last = completion.chunk({"annotations": _annotations(event)}, choice=ended, grounding=asdict(event.grounding))
        return last + (completion.usage(_usage(event)) if include_usage else b"") + DONE

    return write


def _about(event: Sources) -> dict[str, Any]:
    """Groundwell's own fields: the sources, and what had to stay out of the prompt."""
    return {"sources": sources(event), **event.prompt.dropped}


def _annotations(done: Done) -> list[dict[str, Any]]:
    return [{"type": "file_citation", **asdict(citation)} for citation in done.citations]


def _usage(done: Done) -> dict[str, Any]:
    usage: dict[str, Any] = dict(done.usage)
    usage["prompt_tokens_details"] = {"cached_tokens": usage.pop("cached_tokens")}
    return usage
