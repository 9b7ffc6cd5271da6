"""A server's refusals → our exceptions, those that an engine in this process raises too."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import openai

from llm.prompting import PromptTooLong
from llm.protocol import EngineBusy, EngineUnavailable, InvalidRequest, UnknownAdapter

# vLLM 0.32: "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input
# tokens"; or "contains 9000 characters (more than 8192 characters, which is the upper bound for 2048 input tokens)".
# Older ones counted max_tokens in: "you requested 512 output tokens and your prompt contains 1600 input tokens".
WINDOW = re.compile(r"maximum context length is (\d+) tokens")
PROMPT = re.compile(r"(at least )?(\d+) (?:input tokens|in the messages)")
UPPER_BOUND = re.compile(r"upper bound for (\d+) input tokens")
TOO_MANY_ASKED = re.compile(
    r"max_(?:completion_)?tokens\b.*(?:cannot be greater than|too large|must be at least 1, got)"
)
UNKNOWN_MODEL = re.compile(r"The model `(.*)` does not exist")

BUSY = (429, 503)
NOT_IMPLEMENTED = 501
NO_SUCH_ROUTE = (404, 405)


class NoRoom(Exception):
    """The prompt may fit into the window, but not with `max_tokens` after it."""


@contextmanager
def in_our_words(server: str) -> Iterator[None]:
    """Raise our exception for each of openai's, and NoRoom."""
    try:
        yield
    except openai.APIError as error:
        raise _translated(error, server) from error


def _translated(error: openai.APIError, server: str) -> Exception:
    if isinstance(error, openai.APIConnectionError):
        return EngineUnavailable(f"{server} does not answer: {_cause(error)}")
    status, message = _status(error), _message(error)
    if status in BUSY:
        return EngineBusy(message)
    if status >= 500 and status != NOT_IMPLEMENTED:
        return EngineUnavailable(f"{server} failed with status {status}: {message}")
    if unknown := UNKNOWN_MODEL.search(message):
        return _unknown_adapter(unknown[1], f"{server}: {message}")
    if status in NO_SUCH_ROUTE:
        return InvalidRequest(f"{server} has no chat completions (status {status}): base_url ends in /v1 with vLLM's")
    return _about_length(message) or InvalidRequest(f"{server} refused the request with status {status}: {message}")


def _unknown_adapter(name: str, message: str) -> UnknownAdapter:
    error = UnknownAdapter(name, ())
    error.args = (message,)  # the server names its models, not the adapters that are loaded
    return error


def _about_length(message: str) -> Exception | None:
    window = WINDOW.search(message)
    if window is None:
        return NoRoom(message) if TOO_MANY_ASKED.search(message) else None
    size = int(window[1])
    bound, counted = UPPER_BOUND.search(message), PROMPT.search(message)
    if bound:
        tokens, at_least = int(bound[1]) + 1, True
    elif counted:
        tokens, at_least = int(counted[2]), bool(counted[1])
    else:
        return NoRoom(message)
    return PromptTooLong(tokens, size, at_least=at_least) if tokens >= size else NoRoom(message)


def _status(error: openai.APIError) -> int:
    """The HTTP status, or of an error within a stream the one that vLLM names in it."""
    body = error.body if isinstance(error.body, dict) else {}
    status = getattr(error, "status_code", None) or body.get("code")
    return status if isinstance(status, int) else 500


def _message(error: openai.APIError) -> str:
    body = error.body if isinstance(error.body, dict) else {}
    return str(body.get("message") or error.message)


def _cause(error: BaseException) -> str:
    """What the operating system said, below what each library says of it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__
