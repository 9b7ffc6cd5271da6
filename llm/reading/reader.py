"""Reads one answer as its tokens come, through vLLM's parsers: reasoning, text and tool calls.

vLLM's parsers read differently when several tokens come at once, or a token's text comes later than its id, as it does
where stop strings hold it back. Here they get one token at a time with its text, however the deltas are cut.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from llm.protocol import Delta

if TYPE_CHECKING:
    from llm.reading.calls import Calls


@dataclass(frozen=True, slots=True)
class ToolCallFragment:
    """A part of a tool call as it is written: id and name with the first, then pieces of the arguments' JSON."""

    index: int
    id: str | None
    name: str | None
    arguments: str


@dataclass(slots=True)
class Written:
    """What one delta added. `reasoning_tokens` are those of the reasoning without its tags."""

    text: str = ""
    reasoning: str = ""
    tool_calls: Sequence[ToolCallFragment] = ()
    reasoning_tokens: int = 0


class Reader:
    """Reads the deltas of one choice in order: all of it is text."""

    finish_reason: str | None = None

    def read(self, delta: Delta) -> Written:
        """What the delta added. After the last one `finish_reason` says how the choice ended."""
        self.finish_reason = delta.finish_reason
        return Written(delta.text)


class Token(NamedTuple):
    """A token and its text; `id` is None for text that is no token of its own."""

    text: str
    id: int | None

    @property
    def ids(self) -> list[int]:
        return [] if self.id is None else [self.id]


class ParsingReader(Reader):
    """Reads reasoning first, and tool calls in what is left of it.

    `hidden` are tokens whose text nobody but the parsers is to see.
    """

    def __init__(
        self,
        tokens: "Tokens",
        reasoning: "Reasoning | None",
        calls: "Calls | None",
        *,
        hidden: Collection[int] = (),
    ) -> None:
        self._tokens, self._reasoning, self._calls, self._hidden = tokens, reasoning, calls, hidden

    def read(self, delta: Delta) -> Written:
        written = Written()
        for token in self._tokens.of(delta):
            before = written.reasoning
            self._answer(self._after_reasoning(token, written), written)
            written.reasoning = self._without(token, written.reasoning, before)
        cut = False
        if delta.finish_reason is not None:
            # A stop string may come in the middle of a call or of reasoning; the model's own end comes after them.
            cut = delta.finish_reason == "length" or isinstance(delta.stop_reason, str)
            if self._reasoning:
                self._answer(self._reasoning.end(written, cut=cut), written)
            if self._calls:
                self._calls.end(written, cut=cut)
        called = self._calls is not None and bool(self._calls.arguments) and not (cut and self._calls.have_parts)
        self.finish_reason = "tool_calls" if called and delta.finish_reason == "stop" else delta.finish_reason
        return written

    def _after_reasoning(self, token: Token, written: Written) -> list[Token]:
        if self._reasoning is None or (self._calls and self._calls.begun):
            return [token]
        return self._reasoning.read(token, written)

    def _answer(self, tokens: Iterable[Token], written: Written) -> None:
        for token in tokens:
            before = written.text
            if self._calls:
                self._calls.read(token, written)
            else:
                written.text += token.text
            written.text = self._without(token, written.text, before)

    def _without(self, token: Token, text: str, before: str) -> str:
        return before + text[len(before) :].removesuffix(token.text) if token.id in self._hidden else text


class Tokens:
    """The deltas of one choice as single tokens, each with the text that vLLM's detokenizer makes of it."""

    def __init__(self, backend: Any, prompt_ids: Sequence[int], *, hides_special_tokens: bool) -> None:
        from tokenizers.decoders import DecodeStream

        self._backend, self._hides = backend, hides_special_tokens
        self._stream = DecodeStream(ids=list(prompt_ids), skip_special_tokens=hides_special_tokens)
        self._waiting: deque[Token] = deque()
        self._text = ""

    def of(self, delta: Delta) -> Iterator[Token]:
        """The tokens whose text has come; the last delta gives all that are left."""
        self._waiting.extend(Token(self._decoded(token), token) for token in delta.token_ids)
        self._text += delta.text
        last = delta.finish_reason is not None
        while self._waiting and (last or not self._may_come(self._waiting[0].text)):
            text, id = self._waiting.popleft()
            # Without its text is a token that is not shown, or that a stop string has cut off.
            shown = text if self._text.startswith(text) else self._text if text.startswith(self._text) else ""
            self._text = self._text[len(shown) :]
            yield Token(shown, id)
        if self._text and not self._waiting:
            text, self._text = self._text, ""
            yield Token(text, None)

    def _may_come(self, text: str) -> bool:
        return len(self._text) < len(text) and text.startswith(self._text)

    def _decoded(self, token: int) -> str:
        try:
            return self._stream.step(self._backend, token) or ""
        except Exception as error:
            if "Invalid prefix" not in str(error):
                raise
            # As vLLM's FastIncrementalDetokenizer does (vllm-project/vllm#17448).
            self._stream = type(self._stream)(skip_special_tokens=self._hides)
            return self._stream.step(self._backend, token) or ""


class Reasoning:
    """Takes the reasoning out of an answer, by a parser of vLLM's that knows no tools.

    Beyond vLLM: a further block that is closed, or cut, is reasoning too. And an answer that ends without
    any tag, where the prompt has opened none, was the answer: it is given as such at the end.
    """

    def __init__(
        self, parser: Any, request: Any, prompt_ids: list[int], *, opening: int | None, closing: int | None
    ) -> None:
        """`opening` and `closing` are the tags' tokens; None where the format has none."""
        self._parser, self._request, self._prompt_ids = parser, request, prompt_ids
        self._opening, self._closing = opening, closing
        self._ended = bool(parser.is_reasoning_end(prompt_ids))
        self._tagged = self._ended or opening is None or opening in prompt_ids
        self._uncounted = 0
        self._untagged: list[Token] = []
        self._further: list[Token] = []

    def read(self, token: Token, written: Written) -> list[Token]:
        """What of the answer a token adds; its reasoning is added to `written`."""
        if self._further or (self._ended and self._opens(token)):
            self._read_further(token, written)
            return []
        self._tagged = self._tagged or self._opens(token)
        if not self._tagged:
            self._untagged.append(token)
        return self._parse(token, written)

    def end(self, written: Written, *, cut: bool) -> list[Token]:
        """What of the answer was still held back."""
        rest = self._parse(Token("", None), written, finished=True)
        if cut:
            self._add(self._further[1:], written)
            return rest
        untagged = [] if self._tagged or self._ended else self._untagged
        return [*self._further, *rest, *untagged]

    def _opens(self, token: Token) -> bool:
        return self._opening is not None and token.id == self._opening

    def _closes(self, token: Token) -> bool:
        return self._closing is not None and token.id == self._closing

    def _read_further(self, token: Token, written: Written) -> None:
        if self._closes(token):
            self._add(self._further[1:], written)
            self._further = []
        else:
            self._further.append(token)

    def _add(self, tokens: Sequence[Token], written: Written) -> None:
        written.reasoning += "".join(token.text for token in tokens)
        written.reasoning_tokens += len(tokens)

    def _parse(self, token: Token, written: Written, *, finished: bool = False) -> list[Token]:
        found = self._parser.parse_delta(
            token.text, token.ids, self._request, prompt_token_ids=self._prompt_ids, finished=finished
        )
        text, reasoning = (found.content or "", found.reasoning or "") if found else ("", "")
        if text or self._closes(token):
            self._ended = True
        elif not self._opens(token):
            self._uncounted += len(token.ids)
        if reasoning:
            written.reasoning += reasoning
            written.reasoning_tokens += self._uncounted
        if reasoning or text:
            self._uncounted = 0
        return [Token(text, token.id if text == token.text else None)] if text else []
