"""OpenAI's API: models, chat completions with or without documents, embeddings; and vLLM's `/tokenize`."""

import asyncio
import base64
import time
from typing import Any

import numpy
from fastapi import APIRouter, Request
from starlette.responses import Response

from rag.openai_api import direct, grounded
from rag.openai_api.requests import ChatCompletionRequest, EmbeddingsRequest, TokenizeRequest
from rag.openai_api.targets import HEADER, NotOffered, UnknownModel, served, target
from rag.openai_api.wire import Completion, failed
from rag.service import Service
from rag.streaming import EventStream, first_of, while_connected

router = APIRouter()
STARTED = int(time.time())


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """The base model, its adapters, and the base model on each knowledge base."""
    return {"object": "list", "data": await _models(request.app.state.service)}


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> dict[str, Any]:
    """One of these."""
    there = await _models(request.app.state.service)
    for one in there:
        if one["id"] == name:
            return one
    raise UnknownModel(name, [one["id"] for one in there])


async def _models(service: Service) -> list[dict[str, Any]]:
    base, *adapters = served(service.engine)
    knowledge_bases = await asyncio.to_thread(service.library.list)
    about = {"object": "model", "created": STARTED, "owned_by": "groundwell"}
    about["max_model_len"] = service.engine.max_model_len
    return [
        {"id": base, **about},
        *({"id": name, "parent": base, **about} for name in adapters),
        *({"id": f"{base}@{one.name}", "parent": base, **about} for one in knowledge_bases),
    ]


@router.post("/v1/chat/completions", response_model=None)
async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response | dict[str, Any]:
    """Answer from the documents of a knowledge base where one is named, else as the model does by itself."""
    service: Service = request.app.state.service
    header, default = request.headers.get(HEADER), service.default_knowledge_base
    meant = target(service.engine, body.model, default=default, named=body.knowledge_base, header=header)
    completion = Completion(body.model or service.engine.model)
    if meant.knowledge_base is None:
        chunks = direct.choices(service.chat, body, meant.adapter)
        if not body.stream:
            return await while_connected(request.receive, direct.whole(completion, chunks))
        first = await first_of(chunks, request.receive)
        return EventStream(
            first, chunks, write=direct.writer(completion, include_usage=body.include_usage), failed=failed
        )
    if beside := body.beside_grounding():
        raise NotOffered(
            f"{beside[0]}: an answer from documents has none; ask the model {service.engine.model!r} itself"
        )
    question = body.as_question(**({"adapter": meant.adapter} if meant.adapter else {}))
    events = service.answer(meant.knowledge_base, question)
    if not body.stream:
        return await while_connected(request.receive, grounded.whole(completion, events))
    opening = await first_of(events, request.receive)
    return EventStream(
        opening, events, write=grounded.writer(completion, include_usage=body.include_usage), failed=failed
    )


@router.post("/v1/embeddings")
async def embeddings(body: EmbeddingsRequest, request: Request) -> dict[str, Any]:
    """The vectors of texts by the embedder of the knowledge bases."""
    embedder = request.app.state.service.library.embedder
    name = embedder.fingerprint["model"]
    if body.model not in ("", name):
        raise UnknownModel(body.model, [name])
    work = asyncio.to_thread(_embedded, embedder, body)
    vectors, tokens = await while_connected(request.receive, work)
    data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)]
    return {"object": "list", "data": data, "model": name, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


def _embedded(embedder: Any, body: EmbeddingsRequest) -> tuple[list[Any], int]:
    if body.input_type == "query":
        vectors = [embedder.embed_query(text) for text in body.texts]
    else:
        vectors = embedder.embed_documents(body.texts)
    if body.dimensions not in (None, len(vectors[0])):
        raise NotOffered(f"dimensions: this embedder's vectors have {len(vectors[0])} numbers, no other number")
    tokens = sum(len(embedder.offsets(text)) for text in body.texts)
    if body.encoding_format == "base64":
        return [base64.b64encode(numpy.asarray(vector, dtype="<f4").tobytes()).decode() for vector in vectors], tokens
    return vectors, tokens


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, request: Request) -> dict[str, Any]:
    """The ids of messages with the chat template, or of a text; as vLLM's server answers."""
    service: Service = request.app.state.service
    target(service.engine, body.model, default=service.default_knowledge_base)
    ids = await asyncio.to_thread(_ids, service, body)
    return {"count": len(ids), "max_model_len": service.engine.max_model_len, "tokens": ids}


def _ids(service: Service, body: TokenizeRequest) -> list[int]:
    encoder = service.chat.encoder
    if body.prompt is not None:
        return encoder.text_ids(body.prompt)
    messages = [message.as_langchain() for message in body.messages or ()]
    return encoder.encode(messages, tools=body.tools or (), template_options=body.chat_template_kwargs or {})
