"""The model itself in OpenAI's shape, without documents: choices, tool calls, reasoning, log-probabilities."""

from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk

from llm.chat import ChatVLLM
from rag.openai_api.requests import ChatCompletionRequest
from rag.openai_api.wire import DONE, Completion, finish_reason

OF_A_CALL = ("tools", "tool_choice", "parallel_tool_calls", "response_format", "chat_template_kwargs")

Numbered = tuple[int, ChatGenerationChunk]


def choices(chat: ChatVLLM, body: ChatCompletionRequest, adapter: str | None) -> AsyncGenerator[Numbered | None, None]:
    """The chunks of all choices; None behind the last. Raises what a call of the chat model raises."""
    given = {name: value for name in OF_A_CALL if (value := getattr(body, name)) is not None}
    return _until_none(chat.astream_choices(body.as_messages(), adapter=adapter, **given, **body.sampling))


async def _until_none(chunks: AsyncGenerator[Numbered, None]) -> AsyncGenerator[Numbered | None, None]:
    async with aclosing(chunks):
        async for numbered in chunks:
            yield numbered
    yield None


async def whole(completion: Completion, chunks: AsyncGenerator[Numbered | None, None]) -> dict[str, Any]:
    """All choices as one object."""
    usage, by_choice = _Usage(), defaultdict[int, list[ChatGenerationChunk]](list)
    async with aclosing(chunks):
        async for numbered in chunks:
            if numbered:
                usage.add(numbered[1])
                by_choice[numbered[0]].append(numbered[1])
    return completion.whole([_choice(at, by_choice[at]) for at in sorted(by_choice)], usage.total)


def _choice(index: int, chunks: list[ChatGenerationChunk]) -> dict[str, Any]:
    message = (chunks[0] + chunks[1:]).message
    assert isinstance(message, AIMessageChunk)
    said = _said(message, whole=True)
    return {
        "index": index,
        "message": {
            "role": "assistant",
            "refusal": None,
            **said,
            "content": message.text or None if said else message.text,
        },
        **_beside(message, ended=True),
    }


def writer(completion: Completion, *, include_usage: bool) -> Callable[[Numbered | None], bytes]:
    """What a chunk is on the wire; None closes the stream with `[DONE]`."""
    usage, begun = _Usage(), set[int]()

    def write(numbered: Numbered | None) -> bytes:
        if numbered is None:
            return (completion.usage(usage.total) if include_usage else b"") + DONE
        index, message = numbered[0], numbered[1].message
        assert isinstance(message, AIMessageChunk)
        usage.add(numbered[1])
        opened = b""
        if index not in begun:
            begun.add(index)
            opened = completion.chunk({"role": "assistant", "content": ""}, index=index)
        said = _said(message) | ({"content": message.text} if message.text else {})
        beside = _beside(message, ended=message.chunk_position == "last")
        if not said and not any(beside.values()):
            return opened
        return opened + completion.chunk(said, index=index, choice=beside)

    return write


def _said(message: AIMessageChunk, *, whole: bool = False) -> dict[str, Any]:
    """What a message says beside its text. A call that was cut stays as it was written."""
    said: dict[str, Any] = {}
    if calls := message.tool_call_chunks:
        said["tool_calls"] = [
            {
                **({} if whole else {"index": call["index"]}),
                **({"id": call["id"], "type": "function"} if call["id"] else {}),
                "function": {"arguments": call["args"] or "", **({"name": call["name"]} if call["name"] else {})},
            }
            for call in calls
        ]
    if reasoning := message.additional_kwargs.get("reasoning_content"):
        said["reasoning_content"] = reasoning
    return said


def _beside(message: AIMessageChunk, *, ended: bool) -> dict[str, Any]:
    about = message.response_metadata
    beside = {
        "logprobs": about.get("logprobs"),
        "finish_reason": finish_reason(about.get("finish_reason")) if ended else None,
    }
    return beside | ({"stop_reason": about["stop_reason"]} if about.get("stop_reason") is not None else {})


class _Usage:
    """What all choices cost: the prompt once, of the answers each token."""

    def __init__(self) -> None:
        self._counted: Counter[str] = Counter()

    def add(self, chunk: ChatGenerationChunk) -> None:
        usage = chunk.message.usage_metadata if isinstance(chunk.message, AIMessageChunk) else None
        if usage:
            self._counted["prompt"] += usage["input_tokens"]
            self._counted["completion"] += usage["output_tokens"]
            self._counted["cached"] += usage.get("input_token_details", {}).get("cache_read", 0)
            self._counted["reasoning"] += usage.get("output_token_details", {}).get("reasoning", 0)

    @property
    def total(self) -> dict[str, Any]:
        counted = self._counted
        return {
            "prompt_tokens": counted["prompt"],
            "completion_tokens": counted["completion"],
            "total_tokens": counted["prompt"] + counted["completion"],
            "prompt_tokens_details": {"cached_tokens": min(counted["cached"], counted["prompt"])},
            "completion_tokens_details": {"reasoning_tokens": counted["reasoning"]},
        }
