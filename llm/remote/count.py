"""Asking a server for the tokens of a prompt: vLLM's `/tokenize`, beside `/v1`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import openai

from llm.remote.errors import NO_SUCH_ROUTE, in_our_words


class NoTokenCount(NotImplementedError):
    """The server cannot be asked how many tokens a prompt has."""

    def __init__(self, address: str) -> None:
        super().__init__(f"{address} is not vLLM's: the server cannot be asked how many tokens a prompt has")


@dataclass(frozen=True)
class Tokenized:
    """The ids of a prompt, and the model's window."""

    ids: list[int]
    max_model_len: int


def tokenize(client: openai.OpenAI, body: Mapping[str, Any]) -> Tokenized:
    """The ids of `messages` or of a `prompt`. Raises NoTokenCount, and the exceptions of a call."""
    address = _address(client)
    with _known(address):
        return _read(address, client.post(address, body=dict(body), cast_to=object))


async def atokenize(client: openai.AsyncOpenAI, body: Mapping[str, Any]) -> Tokenized:
    """The same without blocking."""
    address = _address(client)
    with _known(address):
        return _read(address, await client.post(address, body=dict(body), cast_to=object))


def _address(client: openai.OpenAI | openai.AsyncOpenAI) -> str:
    return str(client.base_url).rstrip("/").removesuffix("/v1") + "/tokenize"


@contextmanager
def _known(address: str) -> Iterator[None]:
    with in_our_words(address):
        try:
            yield
        except openai.APIStatusError as error:
            # vLLM says 404 of a model that it does not have, and then names it.
            if error.status_code in NO_SUCH_ROUTE and "does not exist" not in error.message:
                raise NoTokenCount(address) from error
            raise


def _read(address: str, answer: Any) -> Tokenized:
    match answer:
        case {"tokens": list() as ids, "max_model_len": int() as size}:
            return Tokenized(ids, size)
    raise NoTokenCount(address)
