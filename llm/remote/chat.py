"""`ChatRemote`: the same chat model on an OpenAI-compatible server, vLLM's own before all others."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from functools import cache
from typing import Any, ClassVar, cast

import openai
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput, ModelProfile
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_openai.chat_models.base import BaseChatOpenAI
from pydantic import Field, model_validator

from llm.binding import Binding
from llm.choices import NOT_STREAMED, several
from llm.option_names.older_sampling_options import SAMPLING
from llm.options import SamplingOptions
from llm.prompting import PromptTooLong
from llm.protocol import InvalidRequest
from llm.remote.answer import PROVIDER, Streamed, completed, extended, kept
from llm.remote.count import Tokenized, atokenize, tokenize
from llm.remote.errors import NoRoom, in_our_words
from llm.remote.request import in_words, sampling_fields, sendable, tool_fields
from llm.structured import Tool

CONNECTION = (
    *("api_key", "base_url", "default_headers", "default_query", "extra_body", "http_async_client", "http_client"),
    *("max_retries", "model", "model_name", "openai_api_base", "openai_api_key", "openai_proxy", "organization"),
    *("output_version", "request_timeout", "stream_chunk_timeout", "stream_usage", "streaming", "timeout"),
)
"""What langchain-openai's class takes and we carry on."""

CLIENTS = ("async_client", "client", "root_async_client", "root_client")  # made anew of the above in a copy
PASSED_ON = ("extra_headers", "extra_query", "stream", "timeout")
ATTEMPTS: tuple[dict[str, Any], ...] = ({}, {"fill_window": True})
"""First with `max_tokens`, then with what room the window leaves, as an engine in this process does by itself."""


@cache
def _async_client() -> Any:
    # Without connections that are kept: a kept one belongs to the event loop that opened it, and the first request
    # of a second `asyncio.run` would fail on it ("Event loop is closed").
    limits = openai.DEFAULT_CONNECTION_LIMITS
    return openai.DefaultAsyncHttpxClient(limits=type(limits)(max_keepalive_connections=0))


class ChatRemote(Binding, BaseChatOpenAI):
    """`ChatRemote(base_url="http://localhost:8000/v1", model="Qwen/Qwen3-8B")`: `ChatVLLM` with the engine elsewhere.

    Keywords, defaults, chunks and exceptions are those of `ChatVLLM`; nothing is taken from OPENAI_API_KEY. What the
    server has to be started with for: tools `--enable-auto-tool-choice --tool-call-parser …`, reasoning
    `--reasoning-parser …`, cached tokens `--enable-prompt-tokens-details`, `priority` `--scheduling-policy priority`,
    and small models `--structured-outputs-config '{"disable_any_whitespace": true}'`. `tools_in_prompt` describes tools
    in the messages, for a server whose chat template leaves them out.

    What only the server could do stays as the server does it: control tokens in a content become control tokens, the
    order of roles is not mended, and the finish reason of a named tool is "stop". `max_length` is refused. Usage comes
    with each chunk from vLLM, at the end from others. Leaving a stream or cancelling closes the connection, by which
    vLLM breaks the request off. Sync calls have a client of their own and go from any thread.
    """

    OF_A_CALL: ClassVar[tuple[str, ...]] = (
        *Binding.OF_A_CALL,
        *PASSED_ON,
        "extra_body",
        "fill_window",
        "stream_options",
        "stream_usage",
    )

    openai_api_base: str = Field(alias="base_url")
    model_name: str = Field(alias="model")
    adapter: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    tools_in_prompt: bool = False
    stream_usage: bool | None = True
    stream_chunk_timeout: float | None = None  # a busy server may be long silent; `timeout` holds for each read
    use_responses_api: bool | None = False  # else a model called "…codex…" would be asked through another API

    @model_validator(mode="before")
    @classmethod
    def _check_sampling(cls, values: dict[str, Any]) -> dict[str, Any]:
        own = {name: value for name, value in values.items() if name in cls._own_names()}
        given = {name: value for name, value in values.items() if name not in own and not cls._is_unset(name, value)}
        defaults = {"http_async_client": _async_client()} | ({} if "openai_api_key" in own else {"api_key": "EMPTY"})
        return defaults | own | SamplingOptions.model_validate(given).model_dump()

    @classmethod
    def _own_names(cls) -> set[str]:
        ours = set(cls.model_fields) - set(BaseChatOpenAI.model_fields)
        return (
            (ours | set(BaseChatModel.model_fields) | set(CONNECTION)) - set(SamplingOptions.model_fields) - {*SAMPLING}
        )

    @classmethod
    def _is_unset(cls, name: str, value: Any) -> bool:
        """Whether it asks for nothing: a copy carries every field of the class below, also those that nobody sends."""
        field = cls.model_fields.get(name)
        unset = field is not None and value == field.get_default(call_default_factory=True)
        return name in CLIENTS or (name not in SamplingOptions.model_fields and unset)

    @model_validator(mode="before")
    @classmethod
    def validate_temperature(cls, values: dict[str, Any]) -> Any:
        """Replaces one that changes the temperature of every model called "gpt-5…" or "o1…"."""
        return values

    @property
    def _llm_type(self) -> str:
        return "groundwell-remote"

    @property
    def _default_params(self) -> dict[str, Any]:
        return {"model": self.model_name, **sampling_fields(self.sampling)}

    @property
    def _identifying_params(self) -> dict[str, Any]:
        own = ("openai_api_base", "adapter", "chat_template_kwargs", "tools_in_prompt", "extra_body")
        return {"model": self.model_name} | {name: getattr(self, name) for name in own} | self.sampling.model_dump()

    def _get_invocation_params(self, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        # LangChain's cache key: with the own `stop`, without langchain-openai's idea of what is sent.
        return BaseChatModel._get_invocation_params(self, stop=stop or self.sampling.stop, **kwargs)

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        sampling = self._sampling(stop, kwargs)
        return LangSmithParams(
            ls_provider=PROVIDER,
            ls_model_name=self._model(kwargs),
            ls_model_type="chat",
            ls_temperature=sampling.temperature,
            ls_max_tokens=sampling.max_tokens,
            ls_stop=sampling.stop or None,
        )

    def _resolve_model_profile(self) -> ModelProfile:
        return ModelProfile(text_inputs=True, text_outputs=True, tool_calling=True, structured_output=True)

    def get_num_tokens_from_messages(
        self, messages: Sequence[BaseMessage], tools: Sequence[Tool] | None = None, **_: Any
    ) -> int:
        """Exactly the number of ids that the server's chat template makes, tools included.

        Raises NoTokenCount where the server has no `/tokenize` (vLLM's has one), and the exceptions of a call.
        """
        return len(tokenize(self.root_client, self._prompt(messages, {"tools": tools})).ids)

    def get_token_ids(self, text: str) -> list[int]:
        """The ids of a text, in which control tokens are control tokens. Raises as `get_num_tokens_from_messages`."""
        body = {"model": self._model({}), "prompt": text, "add_special_tokens": False}
        return tokenize(self.root_client, body).ids

    def _streaming_disabled(self, **kwargs: Any) -> bool:
        # Whoever asks for a stream is told that there is none; whoever only listens gets the answer without one.
        sampling = self._sampling(None, kwargs)
        whole_only = several(sampling) or sampling.prompt_logprobs is not None
        return super()._streaming_disabled(**kwargs) or (not kwargs.get("stream") and whole_only)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        self._check_streamable(stop, kwargs)
        for attempt in ATTEMPTS:
            try:
                with in_our_words(self.openai_api_base):
                    answer, streamed = super()._astream(messages, stop, **kwargs, **attempt), Streamed()
                    async with aclosing(cast(Any, answer)) as chunks:
                        async for chunk in chunks:
                            if passed_on := streamed.chunk(chunk):
                                yield passed_on
                    yield streamed.end()
                    return
            except NoRoom:
                continue
        raise _too_long(await atokenize(self.root_async_client, self._prompt(messages, kwargs)))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        for attempt in ATTEMPTS:
            try:
                with in_our_words(self.openai_api_base):
                    result = await super()._agenerate(messages, stop, **kwargs, **attempt)
                return kept(result, self._sampling(stop, kwargs))
            except NoRoom:
                continue
        raise _too_long(await atokenize(self.root_async_client, self._prompt(messages, kwargs)))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        self._check_streamable(stop, kwargs)
        for attempt in ATTEMPTS:
            try:
                with in_our_words(self.openai_api_base):
                    answer, streamed = super()._stream(messages, stop, **kwargs, **attempt), Streamed()
                    with closing(cast(Any, answer)) as chunks:
                        yield from filter(None, map(streamed.chunk, chunks))
                    yield streamed.end()
                    return
            except NoRoom:
                continue
        raise _too_long(tokenize(self.root_client, self._prompt(messages, kwargs)))

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        for attempt in ATTEMPTS:
            try:
                with in_our_words(self.openai_api_base):
                    result = super()._generate(messages, stop, **kwargs, **attempt)
                return kept(result, self._sampling(stop, kwargs))
            except NoRoom:
                continue
        raise _too_long(tokenize(self.root_client, self._prompt(messages, kwargs)))

    def _check_streamable(self, stop: list[str] | None, kwargs: dict[str, Any]) -> None:
        if several(self._sampling(stop, kwargs)):
            raise InvalidRequest(NOT_STREAMED)

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        fields = sampling_fields(self._sampling(stop, kwargs))
        if kwargs.get("fill_window"):
            del fields["max_tokens"]
        passed_on = {name: kwargs[name] for name in PASSED_ON if kwargs.get(name) is not None}
        if kwargs.get("stream_options"):
            passed_on["stream_options"] = {"continuous_usage_stats": True} | kwargs["stream_options"]
        prompt = self._prompt(self._convert_input(input_).to_messages(), kwargs)
        extra = fields.pop("extra_body") | dict(self.extra_body or {}) | kwargs.get("extra_body", {})
        if options := prompt.pop("chat_template_kwargs", None):
            extra = {"chat_template_kwargs": options} | extra
        return prompt | fields | tool_fields(kwargs) | passed_on | {"extra_body": extra}

    def _prompt(self, messages: Sequence[BaseMessage], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What makes the prompt, as vLLM's chat and `/tokenize` both take it."""
        tools = tool_fields(kwargs).get("tools", [])
        told = in_words(messages, tools) if self.tools_in_prompt else None
        prompt: dict[str, Any] = {"model": self._model(kwargs), "messages": told or self._messages(messages)}
        if tools:
            prompt["tools"] = tools
        if options := self.chat_template_kwargs | kwargs.get("chat_template_kwargs", {}):
            prompt["chat_template_kwargs"] = options
        return prompt

    def _messages(self, messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
        return super()._get_request_payload(sendable(messages))["messages"]

    def _model(self, kwargs: Mapping[str, Any]) -> str:
        own = self.adapter or self.model_name
        return kwargs["adapter"] or self.model_name if "adapter" in kwargs else kwargs.get("model") or own

    def _create_chat_result(self, response: Any, generation_info: dict[str, Any] | None = None) -> ChatResult:
        result = super()._create_chat_result(response, generation_info)
        return completed(result, response if isinstance(response, dict) else response.model_dump(warnings=False))

    def _convert_chunk_to_generation_chunk(
        self, chunk: dict[str, Any], default_chunk_class: type, base_generation_info: dict[str, Any] | None
    ) -> ChatGenerationChunk | None:
        made = super()._convert_chunk_to_generation_chunk(chunk, default_chunk_class, base_generation_info)
        return made and extended(made, chunk)


def _too_long(prompt: Tokenized) -> PromptTooLong:
    return PromptTooLong(len(prompt.ids), prompt.max_model_len)
