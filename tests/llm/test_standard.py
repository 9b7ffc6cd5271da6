"""LangChain's own contract for chat models and embeddings."""

from functools import cache
from typing import Any

from langchain_tests.unit_tests import ChatModelUnitTests, EmbeddingsUnitTests

from llm.chat import ChatVLLM
from llm.embeddings import Embedder
from llm.options import EmbedderOptions
from llm.remote import ChatRemote
from tests.fakes import ScriptedEngine


@cache
def engine() -> ScriptedEngine:
    return ScriptedEngine()


class TestChatModel(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[ChatVLLM]:
        return ChatVLLM

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"engine": engine()}


class TestChatRemote(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[ChatRemote]:
        return ChatRemote

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"base_url": "http://127.0.0.1:1/v1", "model": "small"}


class TestEmbeddings(EmbeddingsUnitTests):
    @property
    def embeddings_class(self) -> type[Embedder]:
        return Embedder

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"options": EmbedderOptions(model="nobody/nothing")}
