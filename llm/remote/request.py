"""Sampling options, tools and messages → the body of a request to an OpenAI-compatible server."""

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from llm.options import SamplingOptions
from llm.prompt.tool_turns import with_tools
from llm.prompt.turns import UnsupportedContent, as_turns, has_tool_turns
from llm.protocol import InvalidRequest
from llm.structured import openai_tools, tool_choice_of

ALWAYS = ("max_tokens", "temperature")  # a server's own defaults are others
IN_OPENAIS_API = ("frequency_penalty", "logit_bias", "presence_penalty", "seed", "stop", "top_p")
OTHERWISE = ("best_of", "extra_args", "logprobs", "max_length", "n", "structured_outputs")


def sampling_fields(sampling: SamplingOptions) -> dict[str, Any]:
    """OpenAI's fields of a request, with those that only vLLM knows below `extra_body`.

    An option at its default is left out, so that a server that is not vLLM's is asked for what it knows. Raises
    InvalidRequest for an option that no server takes.
    """
    if sampling.max_length is not None:
        raise InvalidRequest("max_length counts the prompt too, which the server does not do: set max_tokens")
    given = _given(sampling)
    fields = {name: getattr(sampling, name) for name in ALWAYS}
    fields |= {name: value for name, value in given.items() if name in IN_OPENAIS_API}
    fields |= _choices(sampling) | _logprobs(sampling)
    extra = {
        name: value for name, value in given.items() if name not in (*ALWAYS, *IN_OPENAIS_API, *OTHERWISE)
    } | _vllms_names(sampling)
    return {**fields, "extra_body": extra}


def _given(sampling: SamplingOptions) -> dict[str, Any]:
    default = SamplingOptions()
    return {name: value for name, value in sampling.model_dump().items() if value != getattr(default, name)}


def width(sampling: SamplingOptions) -> int:
    """The number of choices that are drawn, of which `n` are kept."""
    return max(sampling.n, sampling.best_of or 1)


def _choices(sampling: SamplingOptions) -> dict[str, Any]:
    return {"n": width(sampling)} if width(sampling) > 1 else {}


def _logprobs(sampling: SamplingOptions) -> dict[str, Any]:
    if sampling.logprobs is not None:
        return {"logprobs": True, "top_logprobs": sampling.logprobs}
    # The server knows no best_of: the likeliest are found here.
    return {"logprobs": True} if sampling.best_of and not sampling.use_beam_search else {}


def _vllms_names(sampling: SamplingOptions) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if sampling.extra_args:
        extra["vllm_xargs"] = sampling.extra_args
    if width(sampling) > 1:
        extra["return_token_ids"] = True  # the usage is the sum over all choices
    if sampling.structured_outputs is not None:
        extra |= _constraint(sampling.structured_outputs)
    return extra


def _constraint(constraint: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's `response_format` where it can say it. Not as OpenAI's own argument: its client would parse the answer,
    and raise for one that was cut.
    """
    match constraint:
        case {"json": dict() as schema, **rest} if not rest:
            return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}
        case {"json_object": True, **rest} if not rest:
            return {"response_format": {"type": "json_object"}}
    return {"structured_outputs": constraint}


def tool_fields(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The tools of a call with their choice; none where none may be called. Raises ValueError for an unbound name."""
    tools = openai_tools(kwargs.get("tools") or ())
    choice = tool_choice_of(kwargs.get("tool_choice"), tools)
    if not tools or choice == "none":
        return {}
    parallel = {name: kwargs[name] for name in ("parallel_tool_calls",) if name in kwargs}
    return {"tools": tools, "tool_choice": choice, **parallel}


def sendable(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Messages whose content is one text where it has only texts (vLLM would put line breaks between them), without
    calls that are no JSON (vLLM would refuse them).
    """
    return [message.model_copy(update=_changed(message)) for message in messages]


def _changed(message: BaseMessage) -> dict[str, Any]:
    changed: dict[str, Any] = {"content": _joined(message)} if isinstance(message.content, list) else {}
    if isinstance(message, AIMessage) and message.invalid_tool_calls:
        changed["invalid_tool_calls"] = []
    return changed


def _joined(message: BaseMessage) -> Any:
    try:
        return as_turns([message])[0]["content"]
    except UnsupportedContent:  # the server's model may take more than text
        return message.content


def in_words(messages: Sequence[BaseMessage], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """The conversation with its tools in words; None where there is nothing of tools in it."""
    turns = as_turns(messages)
    return with_tools(turns, tools) if tools or has_tool_turns(turns) else None
