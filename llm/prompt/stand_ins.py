"""Stand-ins for what must not reach a template: the parts of messages that would be control tokens in the prompt."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from llm.prompt.turns import Conversation, UnsupportedContent

# What templates look up or compare reaches them as it is.
KEYS = frozenset(
    {"role", "content", "text", "name", "tool_calls", "tool_call_id", "id", "type", "function", "arguments"}
    | {"parameters", "properties", "required", "description", "items", "enum", "default", "title", "format", "strict"}
    | {"const", "nullable", "return", "anyOf", "oneOf", "allOf", "additionalProperties", "$ref", "$defs", "examples"}
    | {"minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "pattern"}
)
VALUES = {
    "role": {"system", "user", "assistant", "tool"},
    "type": {"function", "text", "object", "array", "string", "number", "integer", "boolean", "null"},
}


@dataclass(frozen=True)
class Hidden:
    """What a template gets in place of a conversation, and what the stand-ins in it are for."""

    conversation: Conversation
    originals: Mapping[str, str]

    def show(self, text: str) -> str:
        """Put the originals back into a text that the template made."""
        if not self.originals:
            return text
        stand_ins = re.compile("|".join(map(re.escape, self.originals)))
        return stand_ins.sub(lambda found: self.originals[found[0]], text)


class StandIns:
    """Puts characters that occur nowhere else in the place of control tokens, in nested lists and dicts of texts.

    `tokens` are the control tokens; `pattern` finds the longest one at each place.
    """

    def __init__(self, tokens: Sequence[str], pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self._tokens = "\0".join(tokens)
        self._starts = {token[:end] for token in tokens for end in range(1, len(token))}
        self._ends = {token[start:] for token in tokens for start in range(1, len(token))}
        self._first, self._last = {token[0] for token in tokens}, {token[-1] for token in tokens}
        self._longest_part = max(map(len, tokens), default=0) - 1

    def hide(self, given: Conversation, *, template: str, parts: bool = False) -> Hidden:
        """Hide the control tokens that stand in texts. With `parts`, also break what is said where the template's own
        text beside it could complete one, as the `<` before `|im_end|>` does.
        """
        texts = [*_texts(given.turns), *_texts(given.tools), *_texts(given.options)]
        if not parts and not self._pattern.search("\0".join(texts)):
            return Hidden(given, {})
        chosen = _Chosen("\0".join([*texts, self._tokens, template]))
        whole = partial(self._without_tokens, chosen)
        change = partial(self._without_parts, chosen) if parts else whole
        # The options are the application's words to the template, which compares them.
        changed = Conversation(
            _changed(given.turns, change), _changed(given.tools, change), _changed(given.options, whole)
        )
        return Hidden(changed, chosen.originals)

    def may_be_parts(self, given: Conversation) -> bool:
        """Whether a template could complete a control token with one of the texts."""
        return any(self._exposed(text) for text in chain(_texts(given.turns), _texts(given.tools)))

    def _without_tokens(self, chosen: "_Chosen", text: str) -> str:
        return self._pattern.sub(lambda token: chosen[token[0]], text)

    def _without_parts(self, chosen: "_Chosen", text: str) -> str:
        for at in self._exposed(text):
            text = text[:at] + chosen[text[at]] + text[at + 1 :]
        return self._without_tokens(chosen, text)

    def _exposed(self, text: str) -> set[int]:
        """The places of the first and the last character, where a control token could reach in from beside them."""
        exposed: set[int] = set()
        if not (core := text.strip()):
            return exposed
        for each in {text, core}:  # templates may trim
            if each in self._tokens or any(head in self._ends for head in self._heads(each)):
                exposed.add(text.index(core[0]))
            if any(tail in self._starts for tail in self._tails(each)):
                exposed.add(text.rindex(core[-1]))
        return exposed

    def _heads(self, text: str) -> Iterator[str]:
        """The beginnings of a text that end as a token does."""
        head = text[: self._longest_part]
        if not self._last.isdisjoint(head):
            yield from (head[:end] for end in range(1, len(head) + 1))

    def _tails(self, text: str) -> Iterator[str]:
        """The ends of a text that begin as a token does."""
        tail = text[max(0, len(text) - self._longest_part) :]
        if not self._first.isdisjoint(tail):
            yield from (tail[start:] for start in range(len(tail)))


class _Chosen(dict[str, str]):
    """The stand-in for each original, chosen when it is first asked for, from what does not occur in a text."""

    def __init__(self, text: str) -> None:
        self._unused = _unused_characters(text)

    def __missing__(self, original: str) -> str:
        self[original] = next(self._unused)
        return self[original]

    @property
    def originals(self) -> dict[str, str]:
        originals = {stand_in: original for original, stand_in in self.items()}
        # Templates may write JSON in ASCII.
        return originals | {_escaped(stand_in): _escaped(original) for stand_in, original in originals.items()}


def _texts(value: Any) -> Iterator[str]:
    """All texts in nested lists and dicts, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from chain.from_iterable(_texts(each) for pair in value.items() for each in pair)
    elif isinstance(value, list | tuple):
        yield from chain.from_iterable(map(_texts, value))


def _changed(value: Any, change: Callable[[str], str], key: str = "") -> Any:
    """The same lists and dicts with each text changed, but for what templates look up or compare."""
    if isinstance(value, str):
        return value if value in VALUES.get(key, ()) else change(value)
    if isinstance(value, Mapping):
        return {
            _changed_key(name, change): _changed(each, change, name if isinstance(name, str) else "")
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_changed(each, change) for each in value]
    return value


def _changed_key(key: Any, change: Callable[[str], str]) -> Any:
    return change(key) if isinstance(key, str) and key not in KEYS else key


def _unused_characters(text: str) -> Iterator[str]:
    """Characters of Unicode's private use areas that do not occur in a text, as such or escaped."""
    used = set(text)
    for code in chain(range(0xE000, 0xF900), range(0xF0000, 0xFFFFE)):
        if chr(code) not in used and _escaped(chr(code)) not in text:
            yield chr(code)
    raise UnsupportedContent("the messages hold nearly all characters of Unicode's private use areas")


def _escaped(text: str) -> str:
    """As it stands in JSON that is written in ASCII."""
    return json.dumps(text)[1:-1]
