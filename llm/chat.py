"""`ChatVLLM`: a LangChain chat model on the engine in this process."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from functools import cached_property
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import (
    BaseChatModel,
    LangSmithParams,
    ModelProfile,
    agenerate_from_stream,
    generate_from_stream,
)
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import ConfigDict, Field, ValidationError, model_validator

from llm.bridge import iterate_blocking, iterate_from
from llm.options import SamplingOptions, refuse_unknown
from llm.prompting import PromptEncoder, PromptTooLong
from llm.protocol import Delta, EngineLike, InvalidRequest

# LangChain's standard parameters that mean nothing to an engine in this process; taken, so that models can be swapped.
REMOTE_ONLY = ("api_key", "base_url", "max_retries", "streaming", "timeout")


class ChatVLLM(BaseChatModel):
    """A chat model on a started engine: `ChatVLLM(engine=engine, temperature=0.2, max_tokens=200)`.

    Every field of `SamplingOptions` is a keyword of the constructor, of `.bind()` and of a call. The first streamed
    chunk is empty: it says that the engine has admitted the request; the last one carries the finish reason. Each chunk
    carries the usage that it adds, so a stream that is left early has been counted exactly too.
    Methods may be called on any event loop or thread. Raises PromptTooLong (with both numbers) before anything is
    streamed, and the exceptions of `llm.engine`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    engine: Any = Field(exclude=True, repr=False)
    sampling: SamplingOptions = SamplingOptions()

    @model_validator(mode="before")
    @classmethod
    def _gather_sampling(cls, values: dict[str, Any]) -> dict[str, Any]:
        for name in values:
            refuse_unknown(name, [*cls.model_fields, *SamplingOptions.model_fields, *REMOTE_ONLY], what="ChatVLLM")
        given = {name: value for name, value in values.items() if name in SamplingOptions.model_fields}
        others = {name: value for name, value in values.items() if name not in given}
        base = SamplingOptions.model_validate(values.get("sampling", {}))
        return {**others, "sampling": _merged(base, given)}

    @cached_property
    def encoder(self) -> PromptEncoder:
        """Turns messages into the ids that this model sends."""
        return PromptEncoder(self._engine.tokenizer)

    @property
    def _engine(self) -> EngineLike:
        return self.engine

    @property
    def _llm_type(self) -> str:
        return "groundwell-vllm"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self._engine.model, **self.sampling.model_dump()}

    def _get_invocation_params(self, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        # LangChain's cache key: without this, two models that differ in their own `stop` only would share answers.
        return super()._get_invocation_params(stop=stop or self.sampling.stop, **kwargs)

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        sampling = self._sampling(stop, kwargs)
        return LangSmithParams(
            ls_provider="vllm",
            ls_model_name=kwargs.get("model") or self._engine.model,
            ls_model_type="chat",
            ls_temperature=sampling.temperature,
            ls_max_tokens=sampling.max_tokens,
            ls_stop=sampling.stop or None,
        )

    def _resolve_model_profile(self) -> ModelProfile:
        return ModelProfile(
            max_input_tokens=self._engine.max_model_len,
            max_output_tokens=self._engine.max_model_len,
            text_inputs=True,
            image_inputs=False,
            text_outputs=True,
            tool_calling=False,
            structured_output=False,
            temperature=True,
        )

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence | None = None) -> int:
        """Exactly the number of ids that would be sent, chat template included."""
        return len(self.encoder.encode(messages))

    def get_token_ids(self, text: str) -> list[int]:
        """The ids of a plain text, in which nothing is a control token."""
        return self.encoder.text_ids(text)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        here = iterate_from(self._chunks(messages, stop, kwargs), self._engine.loop)
        async with aclosing(here) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return await agenerate_from_stream(self._astream(messages, stop, **kwargs))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        yield from iterate_blocking(self._chunks(messages, stop, kwargs), self._engine.loop)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return generate_from_stream(self._stream(messages, stop, **kwargs))

    async def _chunks(
        self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]
    ) -> AsyncGenerator[ChatGenerationChunk, None]:
        """The one path: runs on the engine's loop."""
        sampling = self._sampling(stop, kwargs)
        ids = await asyncio.to_thread(self.encoder.encode, messages)
        if len(ids) >= self._engine.max_model_len:
            raise PromptTooLong(len(ids), self._engine.max_model_len)
        generation = await self._engine.submit(ids, sampling)
        async with aclosing(generation):
            yield self._opening(len(ids))
            cached = 0
            async for delta in generation:
                # Reported once, with the first delta: LangChain adds up the usage of all chunks.
                newly_cached, cached = delta.cached_tokens - cached, delta.cached_tokens
                yield self._chunk_of(delta, newly_cached)

    def _sampling(self, stop: list[str] | None, kwargs: dict[str, Any]) -> SamplingOptions:
        given = {name: value for name, value in kwargs.items() if name != "model"}
        for name in given:
            refuse_unknown(name, SamplingOptions.model_fields, what="ChatVLLM")
        try:
            return _merged(self.sampling, given | ({"stop": stop} if stop else {}))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise InvalidRequest(f"{place}: {first['msg']}, not {first['input']!r:.100}") from error

    def _opening(self, input_tokens: int) -> ChatGenerationChunk:
        metadata = {"model_name": self._engine.model, "model_provider": "vllm"}
        return _chunk("", input_tokens=input_tokens, response_metadata=metadata)

    def _chunk_of(self, delta: Delta, cached_tokens: int) -> ChatGenerationChunk:
        tokens = {"output_tokens": len(delta.token_ids), "cached_tokens": cached_tokens}
        if delta.finish_reason is None:
            return _chunk(delta.text, **tokens)
        ending = {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
        return _chunk(delta.text, **tokens, response_metadata=ending, chunk_position="last")


def _chunk(
    text: str, *, input_tokens: int = 0, output_tokens: int = 0, cached_tokens: int = 0, **message: Any
) -> ChatGenerationChunk:
    usage = UsageMetadata(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=input_tokens + output_tokens,
        input_token_details=InputTokenDetails(cache_read=cached_tokens),
    )
    return ChatGenerationChunk(message=AIMessageChunk(content=text, usage_metadata=usage, **message))


def _merged(base: SamplingOptions, given: dict[str, Any]) -> SamplingOptions:
    return SamplingOptions(**(base.model_dump() | given)) if given else base
