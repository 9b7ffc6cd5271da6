"""A follow-up → what can be searched for without the conversation."""

import logging
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig

from ingest.terms import terms
from llm.chat import ChatVLLM
from llm.protocol import URGENT, EngineBusy, EngineStopping, EngineUnavailable
from rag.conversation import MARKS
from rag.pleasantries import is_pleasantry
from rag.profile import Profile

MAX_TOKENS = 64
LONGEST = 400
"""Characters of a rewritten question, and of an earlier turn's question or answer that is joined with a follow-up."""
TURNS = 4
"""Earlier questions, the newest ones, that a follow-up is joined with."""
WHOLE = 5
"""Different terms of a follow-up that is searched for alone too: fewer ("And the hub?") are found anywhere."""
REWRITE = (
    "Rewrite the user's last message as one question that can be understood without the conversation. Keep its "
    "language. Write only the question."
)
LATIN = {"LATIN", "FULLWIDTH", ""}
LATIN_WORD = re.compile(r"[A-Za-z\u00c0-\u024f]+")
NAMED: RunnableConfig = {"run_name": "rewrite_follow_up"}
"""Tells this run of the model from the answer's, in callbacks, traces and events."""

log = logging.getLogger(__name__)


async def searches(
    question: str, history: Sequence[BaseMessage], *, chat: BaseChatModel, profile: Profile
) -> list[str]:
    """The texts to search for, at least one; the passages that score best for any of them are the turn's.

    A first question, and thanks or a greeting, is searched for as it is. A follow-up is rewritten by the model when the
    profile says so; else, and when the rewrite is empty, over-long, in another language or has failed, it is joined
    with each of the last turns (question and answer), as nothing tells which of them it goes on from. If it has words
    enough to be a question of its own, it is searched for alone too: so a new topic is found. Raises what an engine
    that takes no request raises.
    """
    turns = [turn for turn in _turns(history) if not is_pleasantry(turn[0])]
    if not turns or is_pleasantry(question):
        return [question]
    alone = [question] if len(set(terms(question))) >= WHOLE else []
    if profile.follow_up == "rewrite" and (rewritten := await _rewritten(question, history, chat)):
        return list(dict.fromkeys([rewritten, *alone]))
    return [*(f"{asked}\n{said}\n{question}" for asked, said in reversed(turns[-TURNS:])), *alone]


def _turns(history: Sequence[BaseMessage]) -> list[tuple[str, str]]:
    """Questions with their answers, both cut; without marks, which would be searched for as numbers."""
    turns: list[tuple[str, str]] = []
    for message in history:
        if isinstance(message, HumanMessage):
            turns.append((message.text[:LONGEST], ""))
        elif isinstance(message, AIMessage) and turns:
            turns[-1] = (turns[-1][0], f"{turns[-1][1]} {MARKS.sub('', message.text)}".strip()[:LONGEST])
    return turns


async def _rewritten(question: str, history: Sequence[BaseMessage], chat: BaseChatModel) -> str:
    """The model's rewrite; nothing when it is of no use or the call fails."""
    conversation = "\n".join(f"{_speaker(message)}: {message.text}" for message in history[-4:])
    messages = [SystemMessage(REWRITE), HumanMessage(f"{conversation}\nUser: {question}\n\nQuestion:")]
    options: dict[str, Any] = {"priority": URGENT} if isinstance(chat, ChatVLLM) else {}
    try:
        answer = await chat.ainvoke(messages, NAMED, max_tokens=MAX_TOKENS, temperature=0, **options)
    except (EngineBusy, EngineStopping, EngineUnavailable):
        raise
    except Exception as error:  # of any chat model: joining answers for all that can go wrong
        log.warning("the follow-up was not rewritten: %s", error)
        return ""
    rewritten = str(answer.text).strip()
    return rewritten if len(rewritten) <= LONGEST and _same_language(question, rewritten) else ""


def _same_language(question: str, rewritten: str) -> bool:
    """Whether a rewrite has all the question's scripts but Latin (file names, codes), or is mostly Latin like it."""
    scripts = _scripts(question) - LATIN
    if scripts:
        return scripts <= _scripts(rewritten)
    others = sum(1 for character in rewritten if character.isalpha() and _scripts(character) - LATIN)
    return others <= len(LATIN_WORD.findall(rewritten))


def _scripts(text: str) -> set[str]:
    """CJK, HIRAGANA, CYRILLIC …"""
    return {unicodedata.name(character, "").partition(" ")[0] for character in text if character.isalpha()}


def _speaker(message: BaseMessage) -> str:
    return "Assistant" if isinstance(message, AIMessage) else "User"
