"""A conversation as its model was sent it, known again from the plain messages that clients send back."""

import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from rag.counting import Lengths

MARKS = re.compile(r"[\[【［]([\d\s,，、;；~–-]+)[\]】］]")
LARGEST_MARK = 999
"""A larger number in brackets is a year or the like."""
CHARACTERS = 2**24
"""Of passages, questions and answers that are remembered: some thousand turns."""


@dataclass(frozen=True)
class Sent:
    """What one turn was sent."""

    asked: str
    """The text of the user's message: passages and question."""
    numbers: Mapping[int, Document]
    """The passages that were found, by their number in the conversation."""
    told: frozenset[int]
    """Of these, the ones whose whole text stands in `asked`."""
    answer: str | None = None
    """As the model wrote it, marks included; None until it has ended."""
    shown: bytes = b""
    """Stands for the words of the answer as the client got it."""

    @property
    def characters(self) -> int:
        """Roughly what it takes to remember it."""
        return len(self.asked) + len(self.answer or "") + sum(len(each.page_content) for each in self.numbers.values())


@dataclass(frozen=True)
class Turn:
    """An earlier question with its answers, as they are sent again."""

    messages: list[BaseMessage]
    sent: Sent | None = None
    """None: the turn is not known here, and is sent as the client gave it, without passages."""

    @property
    def told(self) -> frozenset[int]:
        """Numbers of the passages that stand in it."""
        return self.sent.told if self.sent else frozenset()


@dataclass(frozen=True)
class Conversation:
    """The turns so far, oldest first."""

    turns: list[Turn] = field(default_factory=list)
    key: bytes = b""
    """Stands for all of it: the same words in the same scope have the same key."""

    def numbered(self, passages: Sequence[Document]) -> dict[int, Document]:
        """The number of each passage: the one that it has had in this conversation, else the next ones."""
        known = {identity(one): number for turn in self.turns if turn.sent for number, one in turn.sent.numbers.items()}
        last = max([*known.values(), *self._marks()], default=0)
        for passage in passages:
            if known.setdefault(identity(passage), last + 1) == last + 1:
                last += 1
        return {known[identity(passage)]: passage for passage in passages}

    def _marks(self) -> list[int]:
        """Numbers that the answers mention: of turns not known here, no new passage may get one of them."""
        said = (message for turn in self.turns for message in turn.messages if isinstance(message, AIMessage))
        marks = (mark for message in said for mark in MARKS.findall(message.text))
        return [int(number) for mark in marks for number in re.findall(r"\d+", mark) if int(number) <= LARGEST_MARK]


class Conversations:
    """Remembers what the turns of the last conversations were sent. Thread-safe, bounded, gone with the process.

    Clients send a conversation as plain messages, without its passages. A turn is known again by what was said up to
    its question (in one scope, such as a knowledge base), so two ways to go on from one point do not mix. Answers are
    compared by their words: a client may have put marks in.
    """

    def __init__(self, *, characters: int = CHARACTERS) -> None:
        self.lengths = Lengths()
        self._most, self._characters = characters, 0
        self._sent: OrderedDict[bytes, Sent] = OrderedDict()
        self._lock = threading.Lock()

    def recall(self, history: Sequence[BaseMessage], *, scope: str = "") -> Conversation:
        """The conversation with the passages that its turns were sent, as far as they are known."""
        turns, key = [], _digest(b"", scope)
        for messages in _pairs(history):
            asked = _digest(key, messages[0].text)
            answer = "".join(message.text for message in messages[1:])
            key = _digest(asked, _words(answer))
            sent = self._known(asked) if isinstance(messages[0], HumanMessage) else None
            turns.append(_as_sent(messages, answer, sent) if sent else Turn(messages))
        return Conversation(turns, key)

    def _known(self, key: bytes) -> Sent | None:
        with self._lock:
            if key in self._sent:
                self._sent.move_to_end(key)
            return self._sent.get(key)

    def remember(self, conversation: Conversation, question: str, sent: Sent) -> None:
        """Keep what the turn that `question` begins was sent; once more when it has its answer."""
        key = _digest(conversation.key, question)
        with self._lock:
            if before := self._sent.pop(key, None):
                self._characters -= before.characters
            self._sent[key] = sent
            self._characters += sent.characters
            while self._characters > self._most:
                self._characters -= self._sent.popitem(last=False)[1].characters

    def answered(self, conversation: Conversation, question: str, written: str, *, shown: str) -> None:
        """Keep the answer as the model wrote it: sent again so, its tokens are the ones in the engine's cache.

        It is known again by what was shown of it, which is what the client sends back.
        """
        with self._lock:
            sent = self._sent.get(_digest(conversation.key, question))
        if sent:
            self.remember(conversation, question, replace(sent, answer=written, shown=_digest(b"", _words(shown))))


def _pairs(history: Sequence[BaseMessage]) -> list[list[BaseMessage]]:
    """The conversation in whole turns: a question with the answers that follow it."""
    pairs: list[list[BaseMessage]] = []
    for message in history:
        if isinstance(message, AIMessage) and pairs:
            pairs[-1].append(message)
        else:
            pairs.append([message])
    return pairs


def _as_sent(messages: list[BaseMessage], answer: str, sent: Sent) -> Turn:
    same = sent.answer is not None and sent.shown == _digest(b"", _words(answer))
    answers = [AIMessage(sent.answer or "")] if same and len(messages) > 1 else messages[1:]
    return Turn([HumanMessage(sent.asked), *answers], sent)


def _words(answer: str) -> str:
    return "".join(MARKS.sub("", answer).split())


def _digest(before: bytes, text: str) -> bytes:
    return blake2b(text.strip().encode(errors="surrogatepass"), key=before, digest_size=16).digest()


def identity(passage: Document) -> tuple[Any, ...]:
    """Equal for the same chunk found again."""
    about = passage.metadata
    return passage.id, about.get("source"), about.get("page"), about.get("start"), passage.page_content
