"""What the routes work with: the engine, the chat model and the open knowledge bases, built once by the lifespan."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from llm.chat import ChatVLLM
from llm.protocol import EngineLike
from rag.answer import Event, Question, answer
from rag.conversation import Conversations
from rag.grounding import GroundingOptions
from rag.library import Library
from rag.profile import Profile


@dataclass(frozen=True)
class Service:
    """The parts of a running service."""

    engine: EngineLike
    chat: ChatVLLM
    library: Library
    profile: Profile
    default_knowledge_base: str
    grounding: GroundingOptions = field(default_factory=GroundingOptions)
    conversations: Conversations = field(default_factory=Conversations)

    async def answer(self, knowledge_base: str, question: Question) -> AsyncGenerator[Event, None]:
        """One turn on a knowledge base, see `rag.answer.answer`. Also raises what `Library.retriever` raises."""
        retriever = await asyncio.to_thread(self.library.retriever, knowledge_base)
        events = answer(
            replace(question, scope=knowledge_base),
            chat=self.chat,
            retriever=retriever,
            profile=self.profile,
            conversations=self.conversations,
            grounding=self.grounding,
        )
        async with aclosing(events):
            async for event in events:
                yield event
