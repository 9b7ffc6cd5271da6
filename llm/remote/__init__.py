"""The same chat model on an OpenAI-compatible server."""

from llm.remote.chat import ChatRemote

__all__ = ["ChatRemote"]
