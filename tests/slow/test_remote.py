"""`ChatRemote` on vLLM's own server: LangChain's contract, and what can only be seen there."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import reduce
from operator import add
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from pydantic import BaseModel

from llm.prompting import PromptTooLong
from llm.protocol import InvalidRequest, UnknownAdapter
from llm.remote import ChatRemote
from tests.server import until
from tests.slow.vllm_server import ADAPTER, MODEL, WINDOW, VLLMServer
from tests.standard import SAMPLING, Contract

MESSAGES = [SystemMessage("简短回答。"), HumanMessage("北京在哪里?")]


class TestChatRemote(Contract):
    @pytest.fixture(autouse=True)
    def _server(self, vllm_server: VLLMServer) -> None:
        type(self).base_url = vllm_server.base_url  # type: ignore[attr-defined]

    @property
    def chat_model_class(self) -> type[ChatRemote]:
        return ChatRemote

    @property
    def chat_model_params(self) -> dict[str, Any]:
        where = {"base_url": self.base_url, "model": MODEL}  # type: ignore[attr-defined]
        return {**where, "tools_in_prompt": True, **SAMPLING}


@pytest.fixture
def chat(vllm_server: VLLMServer) -> ChatRemote:
    return ChatRemote(base_url=vllm_server.base_url, model=MODEL, max_tokens=20, max_retries=0)
