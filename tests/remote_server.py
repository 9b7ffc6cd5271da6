"""A server that answers over HTTP as vLLM 0.32's does, field by field, from a script; knows no model."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

MODEL = "small"
WINDOW = 2048


def refusal(message: str, status: int = 400) -> JSONResponse:
    """An error as vLLM words it."""
    error = {"message": message, "type": "BadRequestError", "param": None, "code": status}
    return JSONResponse({"error": error}, status_code=status)


@dataclass
class RemoteServer:
    """Says `words`, a token each, after `reasoning`; or calls `tools`.

    `received` has the body of each request, `running` counts those that are answered now. What stands in `answers` is
    given first, one for each request. `gate` holds the answer back after `before_gate` tokens, after so many tokens
    `error_after` has the stream hold an error and `breaks_off_after` closes it. Without `counts_on_the_way` it does as
    other servers do: usage at the end only.
    """

    words: tuple[str, ...] = ("The ", "answer ", "is ", "42. ", "答案是四十二。")
    reasoning: tuple[str, ...] = ()
    reasoning_name: str = "reasoning"
    tools: tuple[tuple[str, str], ...] = ()
    finish_reason: str = "stop"
    answers: list[Response] = field(default_factory=list)
    counts_on_the_way: bool = True
    tokenizes: bool = True
    breaks_off_after: int | None = None
    error_after: int | None = None
    error_code: int = 500
    gate: asyncio.Event | None = None
    before_gate: int = 1
    running: int = 0
    received: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    prompt_tokens: int = 7
    cached_tokens: int = 3

    def app(self) -> FastAPI:
        app = FastAPI()
        app.post("/v1/chat/completions")(self._chat)
        if self.tokenizes:
            app.post("/tokenize")(self._tokenize)
        return app

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        self.received.append(body)
        self.headers.append(dict(request.headers))
        if self.answers:
            return self.answers.pop(0)
        if body.get("stream"):
            return StreamingResponse(self._events(body), media_type="text/event-stream")
        return await self._whole_unless_left(body, request)

    async def _whole_unless_left(self, body: dict[str, Any], request: Request) -> Response:
        answer, left = asyncio.ensure_future(self._whole(body)), asyncio.ensure_future(_left(request))
        await asyncio.wait([answer, left], return_when=asyncio.FIRST_COMPLETED)
        left.cancel()
        if not answer.done():
            answer.cancel()
            return Response(status_code=499)
        return JSONResponse(answer.result())

    async def _tokenize(self, request: Request) -> Response:
        body = await request.json()
        self.received.append(body)
        if self.answers:
            return self.answers.pop(0)
        text = body.get("prompt") or json.dumps([body["messages"], body.get("tools")], ensure_ascii=False)
        ids = list(text.encode())
        return JSONResponse({"count": len(ids), "max_model_len": WINDOW, "tokens": ids, "token_strs": None})

    async def _tokens(self) -> AsyncIterator[dict[str, Any]]:
        """One delta for each token."""
        self.running += 1
        try:
            for at, delta in enumerate(self._deltas()):
                if self.gate and at == self.before_gate:
                    await self.gate.wait()
                yield delta
        finally:
            self.running -= 1

    def _deltas(self) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = [{self.reasoning_name: part} for part in self.reasoning]
        for at, (name, arguments) in enumerate(self.tools):
            function = {"name": name}
            deltas.append({"tool_calls": [{"id": f"call-{at}", "type": "function", "index": at, "function": function}]})
            for part in arguments:
                deltas.append({"tool_calls": [{"index": at, "function": {"arguments": part}}]})
        return deltas if self.tools else [*deltas, *({"content": word} for word in self.words)]

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[str]:
        asked = body.get("stream_options") or {}
        on_the_way = bool(asked.get("continuous_usage_stats")) and self.counts_on_the_way
        yield self._event({"delta": {"role": "assistant", "content": ""}}, 0, on_the_way)
        written, last = 0, len(self._deltas())
        async for delta in self._tokens():
            if written == self.error_after:
                yield f'data: {{"error": {{"message": "内存不足", "type": "…", "code": {self.error_code}}}}}\n\n'
            if written == self.breaks_off_after:
                return
            written += 1
            choice: dict[str, Any] = {"delta": delta, "finish_reason": None}
            if body.get("logprobs"):
                choice["logprobs"] = {"content": [_place(delta.get("content") or "", body.get("top_logprobs") or 0)]}
            if written == last:
                choice |= {"finish_reason": self._ended(), "stop_reason": None}
            yield self._event(choice, written, on_the_way)
        if asked.get("include_usage"):
            yield _sent({"choices": [], "usage": self._usage(written, whole=True)})
        yield "data: [DONE]\n\n"

    def _event(self, choice: dict[str, Any], written: int, on_the_way: bool) -> str:
        usage = {"usage": self._usage(written)} if on_the_way else {}
        return _sent({"choices": [{"index": 0, **choice}], **usage})

    def _usage(self, written: int, *, whole: bool = False) -> dict[str, Any]:
        usage: dict[str, Any] = {"prompt_tokens": self.prompt_tokens, "completion_tokens": written}
        if whole:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens, "created_cache_tokens": 0}
        return usage | {"total_tokens": self.prompt_tokens + written, "completion_tokens_details": None}

    def _ended(self) -> str:
        return "tool_calls" if self.tools and self.finish_reason == "stop" else self.finish_reason

    async def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        deltas = [delta async for delta in self._tokens()]
        number = body.get("n") or 1
        choices = [self._choice(at, body) for at in range(number)]
        prompt = None
        if body.get("prompt_logprobs") is not None:
            prompt = [None, {"5": _rank(-2.0, 2, "吗"), "4": _rank(-0.5, 1, "？")}]
        usage = self._usage(len(deltas) * number, whole=True)
        return {**_frame("chat.completion"), "choices": choices, "usage": usage, "prompt_logprobs": prompt}

    def _choice(self, at: int, body: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.words), "refusal": None, "audio": None}
        if self.tools:
            calls = enumerate(self.tools)
            message |= {"content": "", "tool_calls": [_call(index, *call) for index, call in calls]}
        message[self.reasoning_name] = "".join(self.reasoning) or None
        choice: dict[str, Any] = {"index": at, "message": message, "logprobs": None}
        if body.get("logprobs"):
            top = body.get("top_logprobs") or 0
            choice["logprobs"] = {"content": [_place(word, top, -0.5 / (at + 1)) for word in self.words]}
        if body.get("return_token_ids"):
            choice["token_ids"] = list(range(len(self.words)))
        return choice | {"finish_reason": self._ended(), "stop_reason": None}


def _call(at: int, name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"call-{at}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _place(token: str, top: int, logprob: float = -0.5) -> dict[str, Any]:
    place = {"token": token, "logprob": logprob, "bytes": list(token.encode())}
    likelier = {"token": "x", "logprob": logprob / 2, "bytes": [120]}
    return {**place, "top_logprobs": [place, *[likelier] * (top - 1)] if top else []}  # the chosen one first


def _rank(logprob: float, rank: int, token: str) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank, "decoded_token": token}


def _frame(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": MODEL, "system_fingerprint": "vllm-0.32.0"}


def _sent(event: dict[str, Any]) -> str:
    return f"data: {json.dumps({**_frame('chat.completion.chunk'), **event}, ensure_ascii=False)}\n\n"


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
