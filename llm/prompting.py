"""LangChain messages → the model's chat template → token ids, counted exactly as they are sent."""

import re
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from langchain_core.messages import BaseMessage, convert_to_messages

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROLES = {"system": "system", "human": "user", "ai": "assistant", "tool": "tool"}
KEPT = 64  # prompts whose ids are remembered between counting and sending


class PromptTooLong(ValueError):
    """The prompt leaves no room for an answer in the model's window."""

    def __init__(self, prompt_tokens: int, max_model_len: int) -> None:
        self.prompt_tokens, self.max_model_len = prompt_tokens, max_model_len
        super().__init__(
            f"the prompt has {prompt_tokens} tokens, the model's window holds {max_model_len} with the answer: "
            "shorten the question, or start the engine with a larger max_model_len"
        )


class UnsupportedContent(ValueError):
    """A message holds something that the model's chat template cannot take."""


class PromptEncoder:
    """Turns messages into the ids that the engine gets. Thread-safe; remembers the last prompts' ids.

    Control tokens of the vocabulary that stand in a message's content are encoded as the plain text they are, so no
    document, question or file name can open or close a turn.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self._kept: OrderedDict[tuple[tuple[str, str], ...], list[int]] = OrderedDict()

    def encode(self, messages: Sequence[BaseMessage]) -> list[int]:
        """The ids of the messages with the opening of the answer after them; BOS is there once, from the template.

        Raises UnsupportedContent for a role or a content part that a text model's template does not know.
        """
        turns = tuple(_as_turn(message) for message in convert_to_messages(messages))
        if turns not in self._kept:
            self._kept[turns] = self._ids(turns)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return self._kept[turns]

    def text_ids(self, text: str) -> list[int]:
        """The ids of a plain text, in which nothing is a control token."""
        return self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    @cached_property
    def _control_tokens(self) -> re.Pattern[str]:
        tokens = {token.content for token in self._tokenizer.added_tokens_decoder.values()}
        longest_first = sorted(tokens, key=len, reverse=True)
        return re.compile("|".join(re.escape(token) for token in longest_first) or r"(?!)")

    def _ids(self, turns: Sequence[tuple[str, str]]) -> list[int]:
        found = {token for _, content in turns for token in self._control_tokens.findall(content)}
        if not found:
            return self._tokenizer.encode(self._rendered(turns), add_special_tokens=False)
        return self._ids_without_control(turns, sorted(found))

    def _ids_without_control(self, turns: Sequence[tuple[str, str]], found: list[str]) -> list[int]:
        """As `_ids`, with a stand-in for each control token while the template is applied."""
        stand_ins = _unused_characters([content for _, content in turns], len(found))
        tokens = dict(zip(stand_ins, found, strict=True))
        stand_in_of = {token: stand_in for stand_in, token in tokens.items()}
        safe = [(role, self._control_tokens.sub(lambda m: stand_in_of[m[0]], content)) for role, content in turns]
        ids: list[int] = []
        for piece in re.split(f"([{''.join(stand_ins)}])", self._rendered(safe)):
            if piece in tokens:
                ids += self.text_ids(tokens[piece])
            else:
                ids += self._tokenizer.encode(piece, add_special_tokens=False)
        return ids

    def _rendered(self, turns: Sequence[tuple[str, str]]) -> str:
        conversation = [{"role": role, "content": content} for role, content in turns]
        return str(self._tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True))


def _as_turn(message: BaseMessage) -> tuple[str, str]:
    role = ROLES.get(message.type) or getattr(message, "role", None)
    if role is None:
        raise UnsupportedContent(f"a message of type {message.type!r} has no role in a chat template")
    if isinstance(message.content, str):
        return role, message.content
    return role, "".join(_text_of(part) for part in message.content)


def _text_of(part: str | dict) -> str:
    if isinstance(part, str):
        return part
    if part.get("type") == "text":
        return part["text"]
    raise UnsupportedContent(f"the model reads text only, a message holds {part.get('type')!r}")


def _unused_characters(texts: list[str], number: int) -> list[str]:
    """Characters of Unicode's private use area (U+E000–U+F8FF) that occur in none of the texts."""
    used = set().union(*texts)
    unused = (chr(code) for code in range(0xE000, 0xF900) if chr(code) not in used)
    return [next(unused) for _ in range(number)]
