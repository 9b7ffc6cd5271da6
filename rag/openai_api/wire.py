"""What all answers in OpenAI's shape share."""

import time
import uuid
from typing import Any

from rag.errors import status_and_body
from rag.streaming import encode

DONE = b"data: [DONE]\n\n"


class Completion:
    """One completion: its id, time and model stand in the whole answer and in every chunk."""

    def __init__(self, model: str) -> None:
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, choices: list[dict[str, Any]], usage: dict[str, Any], **more: Any) -> dict[str, Any]:
        """The answer as one object."""
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": usage, **more}

    def chunk(
        self, delta: dict[str, Any], *, index: int = 0, choice: dict[str, Any] | None = None, **more: Any
    ) -> bytes:
        """A piece of one choice; `choice` has what stands beside its delta."""
        ended = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None} | (choice or {})
        return self._encoded([ended], **more)

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The chunk that ends a stream whose client asked for its cost."""
        return self._encoded([], usage=usage)

    def _encoded(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return encode({**self._head, "object": "chat.completion.chunk", "choices": choices, **more})


def failed(error: Exception) -> bytes:
    """The last event of a stream that has failed."""
    return encode(status_and_body(error)[1])


def finish_reason(reason: str | None) -> str:
    """OpenAI knows no repetition and no refusal of ours."""
    return reason if reason in ("length", "tool_calls") else "stop"
