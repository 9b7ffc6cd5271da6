"""What the engine writes → LangChain's chunks: text, reasoning, tool calls, usage, log-probabilities, ending."""

from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, message_chunk_to_message
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.messages.tool import ToolCallChunk, invalid_tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk

from llm.output import Reader, ToolCallFragment, Written
from llm.protocol import Candidate, Delta, TokenLogprobs
from llm.reading.calls import is_json

FORBIDDEN = -9999.0
"""OpenAI's log-probability of what cannot come, as of a token that a grammar excludes: JSON knows no infinity."""


def opening(model: str, *, input_tokens: int) -> ChatGenerationChunk:
    """The first chunk: the engine has admitted the request."""
    metadata = {"model_name": model, "model_provider": "vllm"}
    usage = _usage(input_tokens=input_tokens)
    usage["input_token_details"] = InputTokenDetails(cache_read=0)
    return _chunk("", usage, response_metadata=metadata)


class Chunks:
    """Makes the chunks of one choice, delta by delta."""

    def __init__(self, reader: Reader, *, top: int | None = None) -> None:
        self._reader, self._top = reader, top
        self._cached = 0

    def of(self, delta: Delta) -> ChatGenerationChunk:
        """The chunk of a delta. Usage is what the delta adds: LangChain adds up the usage of all chunks."""
        newly_cached, self._cached = delta.cached_tokens - self._cached, delta.cached_tokens
        written = self._reader.read(delta)
        output, reasoning = len(delta.token_ids), written.reasoning_tokens
        usage = _usage(output_tokens=output, cached=newly_cached, reasoning=reasoning)
        metadata = reported(delta, self._reader.finish_reason, top=self._top)
        last = {"chunk_position": "last"} if delta.finish_reason else {}
        return _chunk(written.text, usage, response_metadata=metadata, **_beside_text(written), **last)


def answer_of(chunks: Sequence[ChatGenerationChunk]) -> ChatGeneration:
    """All chunks of one choice as one message, in which a tool call that was cut is an invalid one.

    LangChain mends cut arguments: of `{"path": "/home/a` it makes a call that means something else.
    """
    whole = chunks[0] + list(chunks[1:])
    assert isinstance(whole.message, AIMessageChunk)
    cut = {chunk["id"]: chunk["args"] for chunk in whole.message.tool_call_chunks if not is_json(chunk["args"] or "")}
    message = message_chunk_to_message(whole.message)
    assert isinstance(message, AIMessage)
    message.invalid_tool_calls += [
        invalid_tool_call(name=call["name"], args=cut[call["id"]], id=call["id"], error="the arguments were cut")
        for call in message.tool_calls
        if call["id"] in cut
    ]
    message.tool_calls = [call for call in message.tool_calls if call["id"] not in cut]
    return ChatGeneration(message=message, generation_info=whole.generation_info)


def reported(delta: Delta, finish_reason: str | None, *, top: int | None) -> dict[str, Any]:
    """What a delta says beside its text: log-probabilities in OpenAI's shape where asked for, and the ending."""
    metadata: dict[str, Any] = {}
    if top is not None and delta.logprobs:
        metadata["logprobs"] = {"content": as_openai(delta.logprobs, top)}
    if delta.prompt_logprobs is not None:
        metadata["prompt_logprobs"] = [place and as_openai([place])[0] for place in delta.prompt_logprobs]
    if delta.finish_reason is not None:
        metadata |= {"finish_reason": finish_reason, "stop_reason": delta.stop_reason}
        if delta.cumulative_logprob is not None:
            metadata["cumulative_logprob"] = delta.cumulative_logprob
    return metadata


def _beside_text(written: Written) -> dict[str, Any]:
    beside: dict[str, Any] = {}
    if written.tool_calls:
        beside["tool_call_chunks"] = [_tool_call_chunk(fragment) for fragment in written.tool_calls]
    if written.reasoning:
        beside["additional_kwargs"] = {"reasoning_content": written.reasoning}
    return beside


def _tool_call_chunk(fragment: ToolCallFragment) -> ToolCallChunk:
    return tool_call_chunk(index=fragment.index, id=fragment.id, name=fragment.name, args=fragment.arguments)


def _usage(*, input_tokens: int = 0, output_tokens: int = 0, cached: int = 0, reasoning: int = 0) -> UsageMetadata:
    usage = UsageMetadata(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=input_tokens + output_tokens,
    )
    if cached:  # LangChain adds the details up chunk by chunk, which doubles what a chunk costs
        usage["input_token_details"] = InputTokenDetails(cache_read=cached)
    if reasoning:
        usage["output_token_details"] = OutputTokenDetails(reasoning=reasoning)
    return usage


def _chunk(text: str, usage: UsageMetadata, **message: Any) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=AIMessageChunk(content=text, usage_metadata=usage, **message))


def as_openai(places: Iterable[TokenLogprobs], top: int | None = None) -> list[dict[str, Any]]:
    """Log-probabilities in the shape of OpenAI's `logprobs.content`, with the `top` likeliest (None: all at hand)."""
    return [{**_candidate(place.chosen), "top_logprobs": _candidates(place.top, top)} for place in places]


def _candidates(candidates: Sequence[Candidate], top: int | None) -> list[dict[str, Any]]:
    kept = candidates if top is None or top < 0 else candidates[:top]
    return [_candidate(candidate) for candidate in kept]


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "token": candidate.token,
        "logprob": max(candidate.logprob, FORBIDDEN),
        "bytes": list(candidate.token.encode("utf-8", errors="replace")),
    }
