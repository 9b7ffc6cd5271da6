"""Tokens of a prompt and of its parts, by the very code that makes the ids."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

TEXTS = 2**14
"""Texts whose tokens are remembered: 100 bytes each."""


class Lengths:
    """Remembers how many tokens a text has, so that a conversation is not counted again in each of its turns.

    Thread-safe; for one chat model.
    """

    def __init__(self) -> None:
        self._tokens: OrderedDict[bytes, int] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, text: str) -> int | None:
        """Its tokens, when they were counted lately."""
        with self._lock:
            return self._tokens.get(_digest(text))

    def put(self, text: str, tokens: int) -> None:
        """Remember a count."""
        with self._lock:
            self._tokens[_digest(text)] = tokens
            if len(self._tokens) > TEXTS:
                self._tokens.popitem(last=False)


@dataclass(frozen=True)
class TokenCounter:
    """Counts for one chat model whose window is known."""

    chat: BaseChatModel
    window: int
    """Tokens of prompt and answer together."""
    lengths: Lengths

    @classmethod
    def of(cls, chat: BaseChatModel, lengths: Lengths) -> "TokenCounter | None":
        """None for a model that does not tell its window."""
        window = (chat.profile or {}).get("max_input_tokens")
        return cls(chat, window, lengths) if window else None

    def prompt(self, messages: list[BaseMessage]) -> int:
        """Exactly the ids that are sent."""
        return self.chat.get_num_tokens_from_messages(messages)

    def text(self, text: str) -> int:
        """About what a text adds to a prompt: at its edges tokens may be other ones in the whole."""
        if len(text) > 16 * self.window:  # not worth the time: what is so long does not fit
            return self.window
        known = self.lengths.get(text)
        if known is None:
            known = self.chat.get_num_tokens(text)
            self.lengths.put(text, known)
        return known

    def turn(self, messages: list[BaseMessage]) -> int:
        """About what a turn adds to a prompt."""
        return sum(self._around_a_message + self.text(message.text) for message in messages)

    @cached_property
    def _around_a_message(self) -> int:
        """Tokens that the template puts around a message."""
        one: list[BaseMessage] = [SystemMessage("a"), HumanMessage("a")]
        three = [*one, AIMessage("a"), HumanMessage("a")]
        return -(-(self.prompt(three) - self.prompt(one)) // 2) - self.text("a")


def _digest(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
