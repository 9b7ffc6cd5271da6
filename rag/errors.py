"""What a failure looks like over HTTP: one table from exception type to status and code."""

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ingest.knowledge_bases import UnknownKnowledgeBase
from ingest.store import EmbedderMismatch
from llm.prompting import NoChatTemplate, PromptTooLong, UnsupportedContent
from llm.protocol import (
    AdapterRefused,
    EngineBusy,
    EngineStopping,
    EngineUnavailable,
    InvalidRequest,
    UnknownAdapter,
)
from rag.answer import EmptyQuestion
from rag.library import EmptyKnowledgeBase
from rag.openai_api.targets import NotOffered, UnknownModel

TABLE: dict[type[Exception], tuple[int, str]] = {
    EmptyQuestion: (400, "empty_question"),
    PromptTooLong: (400, "context_length_exceeded"),
    UnsupportedContent: (400, "unsupported_content"),
    NoChatTemplate: (400, "no_chat_template"),
    UnknownModel: (404, "model_not_found"),
    NotOffered: (400, "not_offered"),
    UnknownAdapter: (404, "unknown_adapter"),
    AdapterRefused: (400, "adapter_refused"),
    InvalidRequest: (400, "invalid_request"),
    UnknownKnowledgeBase: (404, "unknown_knowledge_base"),
    EmptyKnowledgeBase: (409, "empty_knowledge_base"),
    EmbedderMismatch: (409, "embedder_mismatch"),
    ClientDisconnect: (499, "client_left"),  # nobody reads it; nginx's number, for the log
    EngineBusy: (503, "engine_busy"),
    EngineStopping: (503, "service_stopping"),
    EngineUnavailable: (503, "engine_unavailable"),
}

CODES = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}
LARGEST_BODY = 2 * 2**20
"""Bytes: reading a text into tokens takes seconds for each MiB, and no window holds as much."""

log = logging.getLogger(__name__)


def status_and_body(error: Exception) -> tuple[int, dict[str, Any]]:
    """The status and the body, in OpenAI's shape, of a failure; one that the table does not know is only logged."""
    if type(error) in TABLE:
        status, code = TABLE[type(error)]
        return status, body(status, code, str(error))
    log.error("a request failed", exc_info=error)
    return 500, body(500, "internal_error", "the service failed; its log says why")


def body(status: int, code: str, message: str, *, param: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's API words it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def install(app: FastAPI) -> None:
    """Answer every failure before the first byte in this shape."""
    for kind in TABLE:
        app.add_exception_handler(kind, _failure)
    app.add_exception_handler(RequestValidationError, _bad_body)
    app.add_exception_handler(HTTPException, _no_such_route)
    app.add_middleware(_BoundedBody)
    app.add_middleware(_Unforeseen)


class _BoundedBody:
    """Refuses a body that is too large while it is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = 0

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > LARGEST_BODY:
                raise HTTPException(413, f"the body has more than {LARGEST_BODY} bytes, which is the most")
            return message

        await self._app(scope, bounded, send)


class _Unforeseen:
    """Answers what no handler knows.

    A handler for Exception would do, but Starlette then raises it again: uvicorn logs it a second time and drops the
    connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began = False

        async def noting(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as error:
            status, content = status_and_body(error)
            if not began:
                await JSONResponse(content, status)(scope, receive, send)


async def _failure(_: Request, error: Exception) -> JSONResponse:
    status, content = status_and_body(error)
    return JSONResponse(content, status, headers={"Retry-After": "5"} if status == 503 else None)


async def _bad_body(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        message = f"the body is no JSON: {first['ctx']['error']} at character {first['loc'][-1]}"
        return JSONResponse(body(400, "invalid_json", message), 400)
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    message = f"{place}: {first['msg']}" if place else f"the body is not what this route takes: {first['msg']}"
    return JSONResponse(body(400, "invalid_request", message, param=place or None), 400)


async def _no_such_route(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    content = body(error.status_code, CODES.get(error.status_code, "refused"), str(error.detail))
    return JSONResponse(content, error.status_code, headers=error.headers)
