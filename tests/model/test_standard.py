"""LangChain's own contract for chat models, on the real engine."""

from typing import Any

import pytest

from llm.chat import ChatVLLM
from llm.engine import Engine
from tests.standard import SAMPLING, Contract


class TestChatVLLM(Contract):
    @pytest.fixture(autouse=True)
    def _engine(self, engine: Engine) -> None:
        type(self).engine = engine  # type: ignore[attr-defined]

    @property
    def chat_model_class(self) -> type[ChatVLLM]:
        return ChatVLLM

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"engine": self.engine, **SAMPLING}  # type: ignore[attr-defined]
