"""A follow-up → a question that can be searched for on its own."""

import logging
from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from llm.chat import ChatVLLM
from llm.protocol import URGENT
from rag.profile import Profile

MAX_TOKENS = 64
LONGEST = 400
"""Characters of a rewritten question: a longer one is an answer or a ramble."""
REWRITE = (
    "Rewrite the user's last message as one question that can be understood without the conversation. Keep its "
    "language. Write only the question."
)

log = logging.getLogger(__name__)


async def standalone(question: str, history: Sequence[BaseMessage], *, chat: BaseChatModel, profile: Profile) -> str:
    """The question to search for. A first turn's is the question itself; no model is called for it.

    An empty or over-long rewrite, or a call that the model refuses, falls back to joining.
    """
    earlier = [str(message.text) for message in history if isinstance(message, HumanMessage)]
    if not earlier:
        return question
    joined = f"{earlier[-1]}\n{question}"
    if profile.follow_up == "join":
        return joined
    try:
        rewritten = await _rewritten(question, history, chat)
    except ValueError as error:  # too long for the window, or refused
        log.warning("the follow-up was not rewritten: %s", error)
        return joined
    return rewritten if 0 < len(rewritten) <= LONGEST else joined


async def _rewritten(question: str, history: Sequence[BaseMessage], chat: BaseChatModel) -> str:
    conversation = "\n".join(f"{_speaker(message)}: {message.text}" for message in history[-4:])
    messages = [SystemMessage(REWRITE), HumanMessage(f"{conversation}\nUser: {question}\n\nQuestion:")]
    options: dict[str, Any] = {"priority": URGENT} if isinstance(chat, ChatVLLM) else {}
    answer = await chat.ainvoke(messages, max_tokens=MAX_TOKENS, temperature=0, **options)
    return str(answer.text).strip()


def _speaker(message: BaseMessage) -> str:
    return "Assistant" if isinstance(message, AIMessage) else "User"
