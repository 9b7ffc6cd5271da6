"""`ChatVLLM`: a LangChain chat model on the engine in this process."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import (
    BaseChatModel,
    LangSmithParams,
    ModelProfile,
)
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import Field

from llm.binding import Binding
from llm.bridge import iterate_blocking, iterate_from, on_loop, wait_for
from llm.choices import NOT_STREAMED, collect, several
from llm.chunks import Chunks, answer_of, opening
from llm.on_engine import OnEngine
from llm.options import SamplingOptions
from llm.output import OutputFormat, ToolUse
from llm.prompting import PromptEncoder
from llm.protocol import InvalidRequest
from llm.structured import Tool, openai_tools, tool_choice_of


@dataclass(frozen=True)
class _Call:
    """What one call sends, and how its answer is read."""

    ids: list[int]
    sampling: SamplingOptions
    adapter: str | None
    format: OutputFormat

    @property
    def options(self) -> dict[str, Any]:
        return {"adapter": self.adapter, "reasoning_ended": self.format.reasoning_ended(self.ids)}


class ChatVLLM(OnEngine, Binding, BaseChatModel):
    """A chat model on a started engine: `ChatVLLM(engine=engine, temperature=0.2, max_tokens=200)`.

    Every field of `SamplingOptions` is a keyword of the constructor, of `.bind()` and of a call; so are `adapter` (the
    name of a loaded LoRA; `model` says the same in OpenAI's way), `chat_template_kwargs` (variables of the model's chat
    template) and, of a call, `tools`, `tool_choice`, `parallel_tool_calls` and `response_format` as OpenAI has them.
    The first streamed chunk is empty: it says that the engine has admitted the request; the last one carries the finish
    reason. Each chunk carries the usage that it adds, so a stream that is left early has been counted exactly too.
    More than one choice (`n`, `best_of`, `use_beam_search`) comes from `generate`/`agenerate`, unstreamed.
    Methods may be called on any event loop or thread. Raises PromptTooLong (with both numbers) before anything is
    streamed, and the exceptions of `llm.protocol`.
    """

    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @cached_property
    def encoder(self) -> PromptEncoder:
        """Turns messages into the ids that this model sends."""
        return PromptEncoder(self._engine.tokenizer)

    @property
    def _llm_type(self) -> str:
        return "groundwell-vllm"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        own = {"model": self._engine.model, "adapter": self.adapter, "chat_template_kwargs": self.chat_template_kwargs}
        return own | self.sampling.model_dump()

    def _get_invocation_params(self, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        # LangChain's cache key: without this, two models that differ in their own `stop` only would share answers.
        return super()._get_invocation_params(stop=stop or self.sampling.stop, **kwargs)

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return self._traced(stop, kwargs) | LangSmithParams(ls_model_type="chat")

    def _resolve_model_profile(self) -> ModelProfile:
        tools = self._engine.tool_call_parser is not None
        return ModelProfile(
            max_input_tokens=self._engine.max_model_len,
            max_output_tokens=self._engine.max_model_len,
            text_inputs=True,
            image_inputs=False,
            audio_inputs=False,
            text_outputs=True,
            reasoning_output=self._engine.reasoning_parser is not None,
            tool_calling=tools,
            tool_choice=tools,
            structured_output=True,
            temperature=True,
        )

    def batch(self, inputs: list[Any], config: Any = None, **options: Any) -> list[Any]:
        """The answers in the inputs' order; the engine has all at once, which LangChain's threads are too few for."""
        return wait_for(self.abatch(inputs, config, **options), self._engine.loop)

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[Tool] | None = None) -> int:
        """Exactly the number of ids that would be sent, chat template and tools included."""
        options = self.chat_template_kwargs
        return len(self.encoder.encode(messages, tools=openai_tools(tools or ()), template_options=options))

    def get_token_ids(self, text: str) -> list[int]:
        """The ids of a plain text, in which nothing is a control token."""
        return self.encoder.text_ids(text)

    def _streaming_disabled(self, **kwargs: Any) -> bool:
        # Whoever asks for a stream is told that there is none; whoever only listens gets the answer without one.
        return super()._streaming_disabled(**kwargs) or (
            not kwargs.get("stream") and several(self._sampling(None, kwargs))
        )

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        here = iterate_from(self._chunks(messages, stop, kwargs), self._engine.loop)
        async with aclosing(here) as chunks:
            async for _, chunk in chunks:
                yield chunk

    async def astream_choices(
        self, messages: list[BaseMessage], **kwargs: Any
    ) -> AsyncGenerator[tuple[int, ChatGenerationChunk]]:
        """The chunks of all `n` choices as they are written, each with its choice's number from 0; see the class.

        LangChain's `astream` knows one choice. The first chunk, of choice 0, is empty: the engine has admitted the
        request; `best_of` and beam search give their choices at the end. Keywords are those of a call.
        """
        here = iterate_from(self._chunks(messages, None, kwargs, choices=True), self._engine.loop)
        async with aclosing(here) as chunks:
            async for numbered in chunks:
                yield numbered

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        if several(self._sampling(stop, kwargs)):
            return await on_loop(self._several(messages, stop, kwargs), self._engine.loop)
        chunks = [chunk async for chunk in self._astream(messages, stop, **kwargs)]
        return ChatResult(generations=[await asyncio.to_thread(answer_of, chunks)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for _, chunk in iterate_blocking(self._chunks(messages, stop, kwargs), self._engine.loop):
            yield chunk

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        if several(self._sampling(stop, kwargs)):
            return wait_for(self._several(messages, stop, kwargs), self._engine.loop)
        return ChatResult(generations=[answer_of(list(self._stream(messages, stop, **kwargs)))])

    async def _chunks(
        self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any], *, choices: bool = False
    ) -> AsyncGenerator[tuple[int, ChatGenerationChunk], None]:
        """The one path: runs on the engine's loop."""
        call = await asyncio.to_thread(self._call, messages, stop, kwargs)
        if several(call.sampling) and not choices:
            raise InvalidRequest(NOT_STREAMED)
        first = opening(call.adapter or self._engine.model, input_tokens=len(call.ids))
        readers = [Chunks(call.format.reader(call.ids), top=call.sampling.logprobs) for _ in range(call.sampling.n)]
        if several(call.sampling) and (call.sampling.best_of or call.sampling.use_beam_search):
            best = await collect(self._engine, call.ids, call.sampling, **call.options)
            yield 0, first
            for at, deltas in enumerate(best):
                for delta in deltas:
                    yield at, readers[at].of(delta)
            return
        generation = await self._engine.submit(call.ids, call.sampling, **call.options)
        async with aclosing(generation):
            yield 0, first
            async for delta in generation:
                yield delta.index, readers[delta.index].of(delta)

    async def _several(self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> ChatResult:
        """All choices, each an answer of its own with the usage of its own tokens."""
        numbered = [pair async for pair in self._chunks(messages, stop, kwargs, choices=True)]
        first, choices = numbered[0][1], defaultdict[int, list[ChatGenerationChunk]](list)
        for at, chunk in numbered[1:]:
            choices[at].append(chunk)
        answers = [await asyncio.to_thread(answer_of, [first, *choices[at]]) for at in sorted(choices)]
        return ChatResult(generations=answers)

    def _call(self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> _Call:
        sampling = self._sampling(stop, kwargs)
        tools = openai_tools(kwargs.get("tools") or ())
        use = ToolUse(tools, tool_choice_of(kwargs.get("tool_choice"), tools), kwargs.get("parallel_tool_calls", True))
        options = self.chat_template_kwargs | kwargs.get("chat_template_kwargs", {})
        form = OutputFormat(self._engine, use, options, constraint=sampling.structured_outputs)
        ids = self.encoder.encode(
            messages,
            tools=[] if use.choice == "none" else tools,
            template_options=options,
            max_model_len=self._engine.max_model_len,
        )
        return _Call(ids, form.applied_to(sampling), self._adapter(kwargs), form)
