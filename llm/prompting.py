"""LangChain messages → the model's chat template → token ids, counted exactly as they are sent."""

import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from itertools import chain, islice
from typing import TYPE_CHECKING

from langchain_core.messages import BaseMessage, convert_to_messages

if TYPE_CHECKING:
    from tokenizers import Tokenizer
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

        Raises UnsupportedContent for a role, a content part or an order of turns that the template does not take.
        """
        turns = tuple(_as_turn(message) for message in convert_to_messages(messages))
        ids = self._kept.get(turns)
        if ids is None:
            ids = self._kept[turns] = self._ids(turns)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return ids

    def text_ids(self, text: str) -> list[int]:
        """The ids of a plain text, in which nothing is a control token."""
        return self._plain.encode(text, add_special_tokens=False).ids

    @cached_property
    def _plain(self) -> "Tokenizer":
        """The tokenizer without its control tokens.

        `split_special_tokens` would not do: it is a switch on the tokenizer that all threads share, and tokens that
        are added but not marked special (DeepSeek's turn tokens, Qwen's `<think>`) stay whole under it.
        """
        from tokenizers import Tokenizer

        described = json.loads(self._tokenizer.backend_tokenizer.to_str())
        return Tokenizer.from_str(json.dumps({**described, "added_tokens": [], "truncation": None, "padding": None}))

    @cached_property
    def _control_tokens(self) -> re.Pattern[str]:
        added = self._tokenizer.added_tokens_decoder.values()
        tokens = {token.content for token in added if token.content.strip()}  # runs of blanks control nothing
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
        from jinja2 import TemplateError

        conversation = [{"role": role, "content": content} for role, content in turns]
        try:
            return str(self._tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True))
        except TemplateError as error:
            raise UnsupportedContent(f"the model's chat template refuses these messages: {error}") from error


def _as_turn(message: BaseMessage) -> tuple[str, str]:
    role = ROLES.get(message.type) or str(getattr(message, "role", message.type))
    if role not in ROLES.values():  # a free role would be written into the prompt beside the control tokens
        raise UnsupportedContent(f"no chat template knows the role {role!r}")
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
    """Characters of Unicode's private use areas (137,468 in all) that occur in none of the texts."""
    used = set().union(*texts)
    private = chain(range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
    return list(islice((chr(code) for code in private if chr(code) not in used), number))
