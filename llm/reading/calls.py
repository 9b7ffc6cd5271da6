"""Takes tool calls out of an answer, by vLLM's parsers of tool calls."""

import json
import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llm.reading.reader import Token, ToolCallFragment, Written


class Calls:
    """Takes the tool calls out of an answer as they are written, by a parser of vLLM's.

    `prompt_ids` only matter to a parser that reads reasoning too.
    """

    def __init__(self, parser: Any, request: Any, prompt_ids: Sequence[int] = ()) -> None:
        self._parser, self._request, self._prompt_ids = parser, request, list(prompt_ids)
        self.arguments: defaultdict[int, str] = defaultdict(str)
        """Of each call what has come of its arguments."""

    @property
    def begun(self) -> bool:
        """Whether a call has begun: from then on nothing but calls is looked for."""
        return bool(self.arguments)

    def read(self, token: Token, written: Written) -> None:
        """Add to `written` what a token adds."""
        self._parse(token, written)

    @property
    def have_parts(self) -> bool:
        """Whether of some call a part of its arguments is missing."""
        return not all(map(is_json, self.arguments.values()))

    def end(self, written: Written, *, cut: bool) -> None:
        """Add what was still held back. Of a call that is cut vLLM's parsers then make a whole one: it stays cut."""
        self._parse(Token("", None), written, finished=True, calls=not cut)
        if not cut:
            for index in [index for index, arguments in self.arguments.items() if not arguments]:
                self._add(ToolCallFragment(index, None, None, "{}"), written)

    def _parse(self, token: Token, written: Written, *, finished: bool = False, calls: bool = True) -> None:
        found = self._parser.parse_delta(
            token.text, token.ids, self._request, prompt_token_ids=self._prompt_ids, finished=finished
        )
        if found is None:
            return
        written.text += found.content or ""
        if found.reasoning:
            written.reasoning += found.reasoning
            written.reasoning_tokens += len(token.ids)
        for call in (found.tool_calls or ()) if calls else ():
            name, arguments = (call.function.name, call.function.arguments) if call.function else (None, None)
            self._add(ToolCallFragment(call.index, call.id, name, arguments or ""), written)

    def _add(self, fragment: ToolCallFragment, written: Written) -> None:
        self.arguments[fragment.index] += fragment.arguments
        written.tool_calls = [*written.tool_calls, fragment]


@dataclass(frozen=True)
class CallStart:
    """How a call begins: `whole` finds the beginning, `part` the end of a text that may become one.

    With a `closing` it is read when it is whole: what vLLM's parser says while such a call is written does not add up.
    """

    whole: re.Pattern[str]
    part: re.Pattern[str]
    closing: str = ""

    @classmethod
    def of(cls, literal: str, *, closing: str = "") -> "CallStart":
        """A call that begins with a fixed text."""
        parts = (re.escape(literal[:length]) for length in range(len(literal) - 1, 0, -1))
        return cls(re.compile(re.escape(literal)), re.compile(rf"(?:{'|'.join(parts)})\Z"), closing)

    @classmethod
    def of_json(cls, literal: str, names: Iterable[str]) -> "CallStart":
        """A call that begins with a JSON object of one of these names, with or without a fixed text before it."""
        kind = r'\{\s*(?:"type"\s*:\s*"function"\s*,'
        whole = rf'{re.escape(literal)}|{kind}\s*)?"name"\s*:\s*"(?:{"|".join(map(re.escape, names))})"'
        part = rf'{kind}?\s*)?(?:"\w{{0,4}}(?:"\s*(?::\s*(?:"[\w.-]*)?)?)?)?\Z'
        return cls(re.compile(whole), re.compile(f"{cls.of(literal).part.pattern}|{part}"))


class CallsFromStart(Calls):
    """The same for calls whose beginning is known: vLLM's parser gets the text from there on.

    Given all of it, it would lose a text that ends as a call begins, and a call that has text before it.
    """

    def __init__(self, parser: Any, request: Any, start: CallStart) -> None:
        super().__init__(parser, request)
        self._start = start
        self._is_forced = request.tool_choice not in (None, "auto")
        self._before, self._since = "", ""

    @property
    def begun(self) -> bool:
        return bool(self._since)

    def read(self, token: Token, written: Written) -> None:
        if not self._since:
            self._before += token.text
            start = self._start.whole.search(self._before) or self._start.part.search(self._before)
            at = start.start() if start else len(self._before)
            written.text += self._before[:at]
            self._before = self._before[at:]
            if not start or start.re is self._start.part:
                return
            token = Token(self._before, None)
        self._since += token.text
        if not self._start.closing:
            self._parse(Token(token.text, None), written)

    def end(self, written: Written, *, cut: bool) -> None:
        if self._since and self._start.closing:
            self._read_whole(written, cut=cut)
        elif self._since:
            self._parse(Token("", None), written)  # some parsers tell one thing at a time, and guess at the end
            super().end(written, cut=cut)
        if not self.arguments and not self._is_forced and not (self._since and cut):
            written.text += self._since or self._before  # it was no call

    def _read_whole(self, written: Written, *, cut: bool) -> None:
        _, _, found = self._parser.parse(self._since, self._request, enable_auto_tools=True)
        calls = [(call.name, call.arguments) for call in found or ()] or _listed(self._since)
        if calls and cut and not self._since.rstrip().endswith(self._start.closing):
            calls[-1] = (calls[-1][0], "")
        for index, (name, arguments) in enumerate(calls):
            self._add(ToolCallFragment(index, f"call-{uuid.uuid4().hex}", name, arguments), written)


def is_json(text: str) -> bool:
    """Whether a text is whole JSON; a line break within a string does no harm."""
    try:
        json.loads(text, strict=False)
    except ValueError:
        return False
    return True


def _listed(text: str) -> list[tuple[str, str]]:
    """Names and arguments of calls in a JSON list: vLLM's parser of Phi's ends it at the first bracket that closes."""
    try:
        calls, _ = json.JSONDecoder().raw_decode(text, text.index("["))
        return [(call["name"], json.dumps(call["arguments"], ensure_ascii=False)) for call in calls]
    except (ValueError, TypeError, KeyError):
        return []
