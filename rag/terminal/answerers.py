"""Who answers a terminal's questions: a running service, or the same parts started in this process."""

import json
import os
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

import httpx

from ingest.command import CommandRefused
from ingest.settings import ENVIRONMENT_PREFIX
from llm.bridge import iterate_blocking
from llm.engine import Engine
from llm.models import ModelNotFound
from llm.protocol import EngineStartFailed
from llm.rerank import NoReranker
from rag.app import build_library, build_service
from rag.errors import TABLE, status_and_body
from rag.schemas import AskRequest, SearchRequest, event_data, event_name, source
from rag.service import Service
from rag.settings import Settings

API_KEY = f"{ENVIRONMENT_PREFIX}API_KEY"
LOOKING_SECONDS = 2.0

Events = Generator[tuple[str, dict[str, Any]], None, None]
"""Names and data of an answer's events, as over HTTP; `error` in place of `done` where it fails on the way."""


class Answerer(Protocol):
    """What answers."""

    @property
    def where(self) -> str:
        """Its address, for people."""
        ...

    def ask(self, knowledge_base: str, body: dict[str, Any]) -> Events:
        """The events of an answer; `body` is that of the route. Raises CommandRefused before the first of them."""
        ...

    def search(self, knowledge_base: str, body: dict[str, Any]) -> dict[str, Any]:
        """What the route answers. Raises CommandRefused."""
        ...


@dataclass(frozen=True)
class Remote:
    """A running service."""

    client: httpx.Client

    @property
    def where(self) -> str:
        """Its address."""
        return str(self.client.base_url)

    def ask(self, knowledge_base: str, body: dict[str, Any]) -> Events:
        """See Answerer."""
        with _reached(), self.client.stream("POST", _route(knowledge_base, "ask"), json=body) as response:
            if response.status_code != 200:
                response.read()
                _refuse(response)
            yield from events(response.iter_lines())

    def search(self, knowledge_base: str, body: dict[str, Any]) -> dict[str, Any]:
        """See Answerer."""
        with _reached():
            response = self.client.post(_route(knowledge_base, "search"), json=body)
        if response.status_code != 200:
            _refuse(response)
        return response.json()


def _route(knowledge_base: str, what: str) -> str:
    return f"v1/knowledge-bases/{quote(knowledge_base, safe='')}/{what}"


def _refuse(response: httpx.Response) -> None:
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = f"{response.url} answers with status {response.status_code}: is it Groundwell?"
    raise CommandRefused(message)


@contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        raise CommandRefused(f"the service has gone away: {error or type(error).__name__}") from error


def events(lines: Iterator[str]) -> Events:
    """Server-Sent Events as names and data; ours have one data line each."""
    name = ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


@dataclass(frozen=True)
class Local:
    """The service's parts in this process."""

    service: Service
    where: str = "this process"

    def ask(self, knowledge_base: str, body: dict[str, Any]) -> Events:
        """See Answerer."""
        turn = self.service.answer(knowledge_base, AskRequest.model_validate(body).as_question())
        begun = False
        try:
            for event in iterate_blocking(turn, self.service.engine.loop):
                begun = True
                yield event_name(event), event_data(event)
        except Exception as error:
            if not begun and type(error) in TABLE:
                raise CommandRefused(str(error)) from error
            if not begun:
                raise
            yield "error", status_and_body(error)[1]

    def search(self, knowledge_base: str, body: dict[str, Any]) -> dict[str, Any]:
        """See Answerer."""
        return _searched(self.service.library.retriever(knowledge_base), body)


@contextmanager
def answerer(settings: Settings, url: str | None) -> Iterator[Answerer]:
    """The service at `url`, else the one at the settings' address when it runs, else one started here and stopped.

    Raises CommandRefused.
    """
    with _running(settings, url) as client:
        if client:
            yield Remote(client)
            return
    try:
        with Engine.start_in_thread(settings.engine) as engine:
            service = build_service(settings, engine)
            with closing(service.library):
                yield Local(service)
    except (EngineStartFailed, ModelNotFound, NoReranker) as error:
        raise CommandRefused(str(error)) from error


def search(settings: Settings, url: str | None, knowledge_base: str, body: dict[str, Any]) -> dict[str, Any]:
    """The same of a search, which needs no engine. Raises CommandRefused."""
    with _running(settings, url) as client:
        if client:
            return Remote(client).search(knowledge_base, body)
    try:
        with closing(build_library(settings)) as library:
            return _searched(library.retriever(knowledge_base), body)
    except tuple(TABLE) as error:
        raise CommandRefused(str(error)) from error


def _searched(retriever: Any, body: dict[str, Any]) -> dict[str, Any]:
    asked = SearchRequest.model_validate(body)
    passages = retriever.invoke(asked.question, **asked.search)
    return {"question": asked.question, "passages": [source(at, one) for at, one in enumerate(passages, 1)]}


@contextmanager
def _running(settings: Settings, url: str | None) -> Iterator[httpx.Client | None]:
    """A client of the running service, with the key of $GROUNDWELL_API_KEY; None where none runs and none is named."""
    host = settings.server.host if settings.server.host not in ("0.0.0.0", "::") else "127.0.0.1"
    address = url or f"http://{f'[{host}]' if ':' in host else host}:{settings.server.port}"
    key = os.environ.get(API_KEY)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx.Timeout(None, connect=LOOKING_SECONDS)  # a prefill takes what it takes
    with httpx.Client(base_url=f"{address.rstrip('/')}/", headers=headers, timeout=timeout, trust_env=False) as client:
        try:
            alive = client.get("health/live", timeout=LOOKING_SECONDS).status_code == 200
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            if url:
                raise CommandRefused(f"no service answers at {url}: {error or type(error).__name__}") from error
            alive = False
        if url and not alive:
            raise CommandRefused(f"no Groundwell answers at {url}")
        yield client if alive else None
