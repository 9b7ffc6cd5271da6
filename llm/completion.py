"""`VLLMCompletion`: a LangChain LLM that writes on from a raw prompt, on the engine in this process."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, closing
from functools import cached_property
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun, Callbacks
from langchain_core.language_models import LangSmithParams
from langchain_core.language_models.llms import BaseLLM
from langchain_core.messages import BaseMessage, get_buffer_string
from langchain_core.outputs import Generation, GenerationChunk, LLMResult

from llm.bridge import iterate_blocking, iterate_from, on_loop, wait_for
from llm.choices import NOT_STREAMED, collect, several, whole
from llm.chunks import reported
from llm.on_engine import OnEngine
from llm.prompting import PromptTooLong
from llm.protocol import Delta, InvalidRequest

OF_A_RUN = ("metadata", "run_id", "run_name", "tags")  # LangChain's own keywords of `generate`


class VLLMCompletion(OnEngine, BaseLLM):
    """Writes on from a prompt, for base models: `VLLMCompletion(engine=engine, temperature=0.8, max_tokens=200)`.

    Every field of `SamplingOptions` is a keyword of the constructor, of `.bind()` and of a call; so is `adapter` (the
    name of a loaded LoRA; `model` says the same in OpenAI's way). Prompts of a batch are in the engine together; when
    one of them fails the others are broken off and its error is raised.

    A prompt gets the tokenizer's special tokens as in vLLM's completions, BOS once also where the prompt begins with
    it. It is the caller's as it stands: control tokens in it are control tokens (a model that fills in the middle needs
    them), so text of strangers belongs in a message for `ChatVLLM`.

    `generation_info` has finish_reason, stop_reason, token_usage and, where asked for, cumulative_logprob, logprobs
    (`{"content": […]}`, the shape of OpenAI's chats) and prompt_logprobs; of a stream the last chunk has all but the
    log-probabilities, which come with their text. More than one choice (`n`, `best_of`, `use_beam_search`) comes from
    `generate`/`agenerate`, best first with the latter two; `token_usage` counts the choices that are returned.
    Methods may be called on any event loop or thread. Raises PromptTooLong (with both numbers) before anything is
    sent, and the exceptions of `llm.protocol`.
    """

    @property
    def _llm_type(self) -> str:
        return "groundwell-vllm-completion"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        # The sampling is one entry: LangChain puts the call's `stop` over an entry of that name, and None over ours.
        return {"model": self._engine.model, "adapter": self.adapter, "sampling": self.sampling.model_dump()}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return self._traced(stop, kwargs) | LangSmithParams(ls_model_type="llm")

    def get_token_ids(self, text: str) -> list[int]:
        """The ids that are sent for a prompt, special tokens included."""
        tokenizer = self._engine.tokenizer
        ids = tokenizer.encode(text, add_special_tokens=True)
        return ids[1:] if self._writes_bos and ids[1:2] == [tokenizer.bos_token_id] else ids

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Any = None) -> int:
        """The number of ids that are sent for messages, which a plain LLM gets as one text."""
        return self.get_num_tokens(get_buffer_string(messages))

    @cached_property
    def _writes_bos(self) -> bool:
        return self._engine.tokenizer.encode("", add_special_tokens=True)[:1] == [self._engine.tokenizer.bos_token_id]

    def generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        callbacks: Callbacks | list[Callbacks] = None,
        **kwargs: Any,
    ) -> LLMResult:
        """All choices of each prompt."""
        run = {name: kwargs.pop(name) for name in OF_A_RUN if name in kwargs}
        return super(VLLMCompletion, self._of_call(kwargs)).generate(prompts, stop, callbacks, **run)

    async def agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        callbacks: Callbacks | list[Callbacks] = None,
        **kwargs: Any,
    ) -> LLMResult:
        """All choices of each prompt."""
        run = {name: kwargs.pop(name) for name in OF_A_RUN if name in kwargs}
        return await super(VLLMCompletion, self._of_call(kwargs)).agenerate(prompts, stop, callbacks, **run)

    def _of_call(self, kwargs: dict[str, Any]) -> "VLLMCompletion":
        """A copy with the call's keywords as its own: LangChain's cache key of an LLM leaves keywords out."""
        if not kwargs:
            return self
        return self.model_copy(
            update={"adapter": self._adapter(kwargs)} | self._sampling(None, kwargs).model_dump(warnings=False)
        )

    async def _astream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[GenerationChunk]:
        async with aclosing(iterate_from(self._chunks(prompt, stop, kwargs), self._engine.loop)) as chunks:
            async for chunk in chunks:
                if run_manager:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    def _stream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[GenerationChunk]:
        with closing(iterate_blocking(self._chunks(prompt, stop, kwargs), self._engine.loop)) as chunks:
            for chunk in chunks:
                if run_manager:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    async def _agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        return await on_loop(self._all(prompts, stop, kwargs), self._engine.loop)

    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        return wait_for(self._all(prompts, stop, kwargs), self._engine.loop)

    async def _chunks(
        self, prompt: str, stop: list[str] | None, kwargs: dict[str, Any]
    ) -> AsyncGenerator[GenerationChunk, None]:
        """One prompt's answer as it comes: runs on the engine's loop."""
        sampling = self._sampling(stop, kwargs)
        if several(sampling):
            raise InvalidRequest(NOT_STREAMED)
        (ids,) = await asyncio.to_thread(self._encoded, [prompt])
        generation = await self._engine.submit(ids, sampling, adapter=self._adapter(kwargs))
        async with aclosing(generation):
            choice = _Choice(len(ids), top=sampling.logprobs)
            async for delta in generation:
                yield choice.chunk(delta)

    async def _all(self, prompts: list[str], stop: list[str] | None, kwargs: dict[str, Any]) -> LLMResult:
        """All choices of all prompts, at once: runs on the engine's loop."""
        sampling, adapter = self._sampling(stop, kwargs), self._adapter(kwargs)
        every = await asyncio.to_thread(self._encoded, prompts)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(collect(self._engine, ids, sampling, adapter=adapter)) for ids in every]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        answers = [task.result() for task in tasks]
        return _result(every, answers, top=sampling.logprobs, model=adapter or self._engine.model)

    def _encoded(self, prompts: list[str]) -> list[list[int]]:
        every = [self.get_token_ids(prompt) for prompt in prompts]
        longest = max(map(len, every), default=0)
        if longest >= self._engine.max_model_len:
            raise PromptTooLong(longest, self._engine.max_model_len)
        return every


class _Choice:
    """Makes the chunks of one choice, delta by delta."""

    def __init__(self, prompt_tokens: int, *, top: int | None) -> None:
        self._prompt_tokens, self._top = prompt_tokens, top
        self._written = 0

    def chunk(self, delta: Delta) -> GenerationChunk:
        self._written += len(delta.token_ids)
        told = reported(delta, delta.finish_reason, top=self._top)
        if delta.finish_reason is not None:  # not bit by bit: LangChain adds up only numbers that differ
            told["token_usage"] = _usage(self._prompt_tokens, self._written, delta.cached_tokens)
        return GenerationChunk(text=delta.text, generation_info=told)


def _result(prompts: list[list[int]], answers: list[list[list[Delta]]], *, top: int | None, model: str) -> LLMResult:
    """The choices of each prompt; a prompt counts once, however many choices it has."""
    generations, used = [], Counter[str]()
    for ids, answer in zip(prompts, answers, strict=True):
        choices = [whole(deltas) for deltas in answer]
        generations.append([_generation(choice, len(ids), top=top) for choice in choices])
        written = sum(len(choice.token_ids) for choice in choices)
        used.update(prompt=len(ids), completion=written, cached=choices[0].cached_tokens)
    return LLMResult(generations=generations, llm_output={"token_usage": _usage(**used), "model_name": model})


def _generation(choice: Delta, prompt_tokens: int, *, top: int | None) -> Generation:
    chunk = _Choice(prompt_tokens, top=top).chunk(choice)
    return Generation(text=chunk.text, generation_info=chunk.generation_info)


def _usage(prompt: int = 0, completion: int = 0, cached: int = 0) -> dict[str, Any]:
    """Tokens in OpenAI's names."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
