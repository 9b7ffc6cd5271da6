"""Groundwell's own API: knowledge bases, and a question answered as events or as one JSON object."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from rag.answer import Done, Event, Sources
from rag.errors import status_and_body
from rag.schemas import AskRequest, SearchRequest, event_data, event_name, source
from rag.service import Service
from rag.streaming import EventStream, encode, first_of, while_connected

router = APIRouter(prefix="/v1/knowledge-bases")


@router.get("")
async def knowledge_bases(request: Request) -> dict[str, Any]:
    """The knowledge bases of this service."""
    service: Service = request.app.state.service
    found = await asyncio.to_thread(service.library.list)
    return {"knowledge_bases": [{"name": kb.name, "documents": kb.documents, "chunks": kb.chunks} for kb in found]}


@router.post("/{name}/search")
async def search(name: str, body: SearchRequest, request: Request) -> dict[str, Any]:
    """The passages nearest a question, best first, without an answer."""
    service: Service = request.app.state.service
    retriever = await asyncio.to_thread(service.library.retriever, name)
    passages = await while_connected(request.receive, retriever.ainvoke(body.question, **body.search))
    return {"question": body.question, "passages": [source(at, one) for at, one in enumerate(passages, 1)]}


@router.post("/{name}/ask", response_model=None)
async def ask(name: str, body: AskRequest, request: Request) -> Response | dict[str, Any]:
    """Answer a question from a knowledge base: events `sources`, `token` …, then `done` or `error`; or one object."""
    service: Service = request.app.state.service
    events = service.answer(name, body.as_question())
    if body.stream:
        first = await first_of(events, request.receive)
        return EventStream(first, events, write=_write, failed=_failed)
    return await while_connected(request.receive, _whole(events))


async def _whole(events: AsyncGenerator[Event, None]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Sources | Done):
                whole |= event_data(event)
    return whole


def _write(event: Event) -> bytes:
    return encode(event_data(event), name=event_name(event))


def _failed(error: Exception) -> bytes:
    return encode(status_and_body(error)[1], name="error")
