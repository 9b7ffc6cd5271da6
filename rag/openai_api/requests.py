"""What OpenAI's clients send, checked before any work."""

import difflib
import logging
from collections.abc import Iterable
from typing import Any, Literal, Self

from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers.openai_tools import make_invalid_tool_call, parse_tool_call
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from llm.option_names.older_sampling_options import SAMPLING
from llm.options import SamplingOptions
from llm.structured import constraint_of, openai_tools, tool_choice_of
from rag.answer import Question
from rag.grounding import Mode
from rag.schemas import Searching, Text

MOST_INPUTS = 2048
"""Texts of one request for embeddings, as OpenAI's API has it."""
WITHOUT_EFFECT = frozenset(
    (
        "audio",
        "function_call",
        "functions",
        "metadata",
        "modalities",
        "prediction",
        "prompt_cache_key",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
        "web_search_options",
    )
)
"""Fields of OpenAI's API that mean nothing here."""
NOT_GROUNDED = ("best_of", "logprobs", "n", "prompt_logprobs", "response_format", "structured_outputs", "tools")

log = logging.getLogger(__name__)


class Part(BaseModel):
    """A part of a message's content; only text is read."""

    type: Literal["text"]
    text: Text


class Function(BaseModel):
    """The function of a tool call, its arguments as JSON."""

    name: Text
    arguments: Text


class ToolCall(BaseModel):
    """A call that the model has made in an earlier turn."""

    id: Text
    type: Literal["function"] = "function"
    function: Function


class Message(BaseModel):
    """A message of an OpenAI client."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[Part] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: Text | None = None

    @property
    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    def as_langchain(self) -> BaseMessage:
        """The same as LangChain has it; a call whose arguments are no JSON is an invalid one."""
        match self.role:
            case "user":
                return HumanMessage(self.text)
            case "assistant":
                return _assistant(self.text, self.tool_calls or ())
            case "tool":
                return ToolMessage(self.text, tool_call_id=self.tool_call_id or "")
        return SystemMessage(self.text)


def _assistant(text: str, calls: Iterable[ToolCall]) -> AIMessage:
    good, bad = [], []
    for call in calls:
        try:
            good.append(parse_tool_call(call.model_dump(), return_id=True))
        except OutputParserException:
            bad.append(make_invalid_tool_call(call.model_dump(), "the arguments are no JSON"))
    return AIMessage(text, tool_calls=good, invalid_tool_calls=bad)


class StreamOptions(BaseModel):
    """OpenAI's `stream_options`."""

    include_usage: bool = False


class ChatCompletionRequest(Searching, SamplingOptions):
    """Body of `POST /v1/chat/completions`: OpenAI's fields, every sampling option of vLLM's by its own or an older
    name, and `knowledge_base`, `grounding` and the fields of the search, which are ours.

    A field without effect (`WITHOUT_EFFECT`) and any other that is not known is ignored, as clients send fields of
    their own; one that looks like a misspelt field of these is refused.
    """

    model_config = ConfigDict(strict=True, extra="ignore")

    model: Text = ""
    messages: list[Message] = Field(min_length=1, strict=False)
    stream: bool = False
    stream_options: StreamOptions | None = Field(None, strict=False)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    knowledge_base: Text | None = None
    grounding: Mode | None = None

    @classmethod
    def _in_todays_names(cls, values: dict[str, Any]) -> dict[str, Any]:
        absent = {name for name, value in values.items() if value is None}  # OpenAI's clients send null for it
        return super()._in_todays_names({name: value for name, value in values.items() if name not in absent})

    @classmethod
    def _refuse_unknown(cls, name: str) -> None:
        known = [*cls.model_fields, *SAMPLING]
        if name not in WITHOUT_EFFECT and name not in known:
            if near := difflib.get_close_matches(name, known, n=1, cutoff=0.85):
                raise ValueError(f"there is no field {name!r}; did you mean {near[0]!r}?")
            log.debug("the field %r of a request is ignored", name)

    @field_validator("tools")
    @classmethod
    def _are_functions(cls, tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        for at, tool in enumerate(tools or ()):
            if tool.get("type") != "function" or not isinstance((tool.get("function") or {}).get("name"), str):
                raise ValueError(f"tool {at} is no function with a name")
        return openai_tools(tools) if tools else None

    @field_validator("tool_choice")
    @classmethod
    def _is_bound(cls, choice: Any, info: ValidationInfo) -> Any:
        return choice if choice is None else tool_choice_of(choice, info.data.get("tools") or ())

    @field_validator("response_format")
    @classmethod
    def _is_known(cls, form: dict[str, Any] | None) -> dict[str, Any] | None:
        try:
            return form and (constraint_of(form) and form)
        except (KeyError, TypeError) as error:
            raise ValueError("a json_schema is an object with a `schema`") from error

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.response_format and self.structured_outputs:
            raise ValueError("response_format and structured_outputs cannot both be given: say one of them")
        return self

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a chunk of the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling options that were given."""
        return {name: getattr(self, name) for name in SamplingOptions.model_fields if name in self.model_fields_set}

    def beside_grounding(self) -> list[str]:
        """What was asked for that an answer from documents cannot have."""
        asked = {name: getattr(self, name) for name in NOT_GROUNDED if name in self.model_fields_set}
        return [name for name, value in asked.items() if value not in (None, [], 1 if name in ("n", "best_of") else [])]

    def as_messages(self) -> list[BaseMessage]:
        """The conversation as LangChain has it."""
        return [message.as_langchain() for message in self.messages]

    def as_question(self, **sampling: Any) -> Question:
        """The last user message is the question, what stands before it the conversation."""
        system = [message.text for message in self.messages if message.role in ("system", "developer")]
        turns = [message for message in self.messages if message.role in ("user", "assistant")]
        last = max((at for at, message in enumerate(turns) if message.role == "user"), default=-1)
        return Question(
            turns[last].text if last >= 0 else "",
            [
                HumanMessage(turn.text) if turn.role == "user" else AIMessage(turn.text)
                for turn in turns[: max(last, 0)]
            ],
            instructions="\n\n".join(system),
            sampling=self.sampling | sampling,
            search=self.search,
            grounding=self.grounding,
        )


class EmbeddingsRequest(BaseModel):
    """Body of `POST /v1/embeddings`. `input_type` is ours: a query and a document differ for some embedders."""

    model: Text = ""
    input: Text | list[Text] = Field(min_length=1)
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    input_type: Literal["document", "query"] = "document"

    @field_validator("input", mode="before")
    @classmethod
    def _are_texts(cls, given: Any) -> Any:
        if isinstance(given, list) and any(isinstance(one, int | list) for one in given):
            raise ValueError(
                "token ids cannot be read, as they are another model's: send texts "
                "(LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False)"
            )
        return given

    @property
    def texts(self) -> list[str]:
        """What is to be embedded. At least one."""
        return [self.input] if isinstance(self.input, str) else self.input

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if len(self.texts) > MOST_INPUTS:
            raise ValueError(f"{len(self.texts)} texts are more than the {MOST_INPUTS} of one request")
        if empty := [at for at, text in enumerate(self.texts) if not text.strip()]:
            raise ValueError(f"text {empty[0]} is empty")
        return self


class TokenizeRequest(BaseModel):
    """Body of `POST /tokenize`, as vLLM's server has it: of messages, or of a text."""

    model: Text = ""
    messages: list[Message] | None = None
    prompt: Text | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("one of messages and prompt is needed")
        return self
