"""Sentences of an answer: finding them, and stopping at the first one that says again what was said."""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

# A Latin full stop ends a sentence only before white space (3.5 does not); a Chinese one always does.
SENTENCE_END = re.compile(r"[。！？；]+[”’」』》）)\"']*|[.!?]+[\"'”’)\]]*(?=\s)|\n+")


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each sentence, without the white space around it."""
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    spans = []
    for start, end in zip([0, *ends], [*ends, len(text)], strict=True):
        piece = text[start:end]
        if piece.strip():
            spans.append((start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())))
    return spans


async def until_repetition(texts: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    """The stream up to the first sentence that occurred before. Text is held back only while it could become one."""
    seen = _Seen()
    async with aclosing(texts):
        async for text in texts:
            new, repeated = seen.add(text)
            if new:
                yield new
            if repeated:
                return
    if rest := seen.rest():
        yield rest


class _Seen:
    """The sentences so far, and the beginning of the one that is being written."""

    def __init__(self) -> None:
        self._sentences: set[str] = set()
        self._current, self._sent = "", 0

    def add(self, text: str) -> tuple[str, bool]:
        """Take more text: what may be shown now, and whether a sentence has just been repeated."""
        self._current += text
        shown = ""
        # An end at the very end of the text so far may still grow by a closing quote.
        while (end := SENTENCE_END.search(self._current)) and end.end() < len(self._current):
            sentence = _folded(self._current[: end.end()])
            if sentence and sentence in self._sentences:
                return shown, True
            self._sentences.add(sentence)
            shown += self._current[self._sent : end.end()]
            self._current, self._sent = self._current[end.end() :], 0
        if not self._may_repeat():
            shown += self._current[self._sent :]
            self._sent = len(self._current)
        return shown, False

    def rest(self) -> str:
        """What was held back at the end, unless it repeats a sentence or the beginning of one."""
        return "" if self._may_repeat() else self._current[self._sent :]

    def _may_repeat(self) -> bool:
        begun = _folded(self._current)
        return any(sentence.startswith(begun) for sentence in self._sentences) if begun else bool(self._sentences)


def _folded(sentence: str) -> str:
    return " ".join(sentence.casefold().split())
