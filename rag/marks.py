"""The model's marks `[n]` taken out of its text while it streams, the same for every cutting.

Read as marks are `[1]`, `【1】`, `［１］`, `[1, 2]` and `[1-3]`. Left alone are brackets in code (fenced, or between
backticks on one line), links (`[1](…)`, `[text][1]`, `![…]`), footnotes, an index (`a[1]`, `rows_2[1]`, `f()[1]`),
what a backslash stands before, intervals from 0 and numbers of more than three digits.
"""

import re
from dataclasses import dataclass

PAIRS = {"[": "]", "【": "】", "［": "］"}
NUMBERS = r"\s{0,3}\d{1,3}(?:\s{0,3}[,，、;；\-–~]\s{0,3}\d{1,3}){0,9}\s{0,3}"
MARK = re.compile(rf"\[{NUMBERS}\]|【{NUMBERS}】|［{NUMBERS}］")
BEGUN = re.compile(r"[\[【［][\s\d,，、;；\-–~]{0,90}")
"""What may become a mark; a longer one is none."""
SPACE = re.compile(r"[ \t\u3000]+")
BACKTICKS = re.compile(r"`+")
FENCE = re.compile(r"[ ]{0,3}(`{3,}|~{3,})")
FENCE_BEGUN = re.compile(r"[ ]{0,3}[`~]{0,2}")
CLOSING_BEGUN = re.compile(r"[ ]{0,3}([`~]*)[ \t]*")
RANGE = re.compile(r"(\d+)(?:\s*[\-–~]\s*(\d+))?")
INDEXED = re.compile(r"(?:\b[A-Za-z]|[A-Za-z]*[a-z][A-Z]\w*|\w*_\w*|\b[a-z]+\d+|\(\)|[\]\\])$", re.ASCII)
"""Text before a bracket that makes it an index, a link or escaped: an identifier, a call, another bracket."""
TAIL = 60
"""Characters of the text before that are looked at."""


@dataclass(frozen=True)
class Mark:
    """A mark that was taken out."""

    position: int
    """Where it stood, in characters of the text without marks."""
    numbers: tuple[int, ...]
    """The passages that it names, each once, in the order written."""
    text: str
    """As the model wrote it."""
    leads: bool
    """It opens its line, and so stands before the sentence that it belongs to."""


class Marks:
    """Takes pieces of the model's text; gives the text without marks, as far as no later piece can change it."""

    def __init__(self) -> None:
        self.found: list[Mark] = []
        self.length = 0
        self._held = ""
        self._tail = ""
        """The end of the line that has been given out."""
        self._line_begins = True
        self._fence = ""
        self._inline = 0
        """Length of the run of backticks that opened the code we are in, else 0."""
        self._leading_mark = False

    def add(self, text: str) -> str:
        """Take more text; the part that is certain now."""
        self._held += text
        return self._certain(last=False)

    def end(self) -> str:
        """What was held back."""
        return self._certain(last=True)

    def _certain(self, *, last: bool) -> str:
        given: list[str] = []
        while self._held and (step := self._step(last)) is not None:
            taken, shown = step
            self._held = self._held[taken:]
            given.append(shown)
            self._note(shown)
        return "".join(given)

    def _note(self, shown: str) -> None:
        if not shown:
            return
        self.length += len(shown)
        line = (self._tail + shown).rpartition("\n")[2]
        self._line_begins = shown.endswith("\n")
        self._tail = line[-TAIL:]
        if shown.strip():
            self._leading_mark = False

    def _step(self, last: bool) -> tuple[int, str] | None:
        """Characters to take and the text to show for them; None while that depends on what comes."""
        if self._line_begins and (fence := self._at_line(last)) != (0, ""):
            return fence
        if self._held[0] == "\n":
            self._inline = 0  # code between backticks ends with its line: nothing can be held back for ever
            return 1, "\n"
        if self._held[0] == "`" and not self._fence:
            return self._backticks(last)
        if self._fence or self._inline:
            return self._plain("\n" if self._fence else "\n`")
        if space := SPACE.match(self._held):
            return self._after_space(space.end(), last)
        if self._held[0] in PAIRS:
            return self._bracket(0, last)
        return self._plain("\n`[【［ \t\u3000")

    def _plain(self, until: str) -> tuple[int, str]:
        """Everything before the next character that may mean something; at least one."""
        end = next((at for at, character in enumerate(self._held) if at and character in until), len(self._held))
        return end, self._held[:end]

    def _at_line(self, last: bool) -> tuple[int, str] | None:
        """A fence that opens or closes here; (0, "") where there is none."""
        if self._fence:
            return self._closing(last)
        if fence := FENCE.match(self._held):
            if fence.end() == len(self._held) and not last:
                return None
            self._fence = fence[1]
            return fence.end(), fence[0]
        begun = FENCE_BEGUN.fullmatch(self._held)
        return None if begun and not last else (0, "")

    def _closing(self, last: bool) -> tuple[int, str] | None:
        line = CLOSING_BEGUN.match(self._held)
        assert line
        if line.end() == len(self._held) and not last:
            return None
        run, rest = line[1], self._held[line.end() :]
        closes = len(run) >= len(self._fence) and set(run) == set(self._fence) and (not rest or rest[0] == "\n")
        if not closes:
            return (line.end(), line[0]) if line[0] else (0, "")
        self._fence = ""
        return line.end(), line[0]

    def _backticks(self, last: bool) -> tuple[int, str] | None:
        run = BACKTICKS.match(self._held)
        assert run
        if run.end() == len(self._held) and not last:
            return None
        if not self._inline:
            self._inline = run.end()
        elif self._inline == run.end():
            self._inline = 0
        return run.end(), run[0]

    def _after_space(self, end: int, last: bool) -> tuple[int, str] | None:
        """White space goes with a mark that follows it."""
        if self._leading_mark:
            return end, ""
        if end == len(self._held) and not last:
            return None
        if end < len(self._held) and self._held[end] in PAIRS:
            return self._bracket(end, last)
        return end, self._held[:end]

    def _bracket(self, start: int, last: bool) -> tuple[int, str] | None:
        """A mark with the white space before it, or the bracket as text."""
        text = start + 1, self._held[: start + 1]
        if not start and INDEXED.search(self._tail):
            return text
        mark = MARK.match(self._held, start)
        if not mark:
            begun = BEGUN.match(self._held, start)
            return None if begun and begun.end() == len(self._held) and not last else text
        if mark.end() == len(self._held) and not last:
            return None
        numbers = _numbers(mark[0])
        if self._held[mark.end() : mark.end() + 1] == "(" or not numbers:
            return mark.end(), self._held[: mark.end()]
        leads = not self._tail.strip()
        self._leading_mark = leads
        self.found.append(Mark(self.length, numbers, mark[0], leads))
        return mark.end(), ""


def _numbers(mark: str) -> tuple[int, ...]:
    """The passages that a mark names; none for an interval from 0 or a range that runs backwards."""
    numbers: dict[int, None] = {}
    for first, final in RANGE.findall(mark):
        numbers |= dict.fromkeys(range(int(first), int(final or first) + 1) if final else [int(first)])
        if final and int(final) < int(first):
            return ()
    return () if 0 in numbers and len(numbers) > 1 else tuple(numbers)


def without_marks(text: str) -> tuple[str, list[Mark]]:
    """The whole text at once: without its marks, and these."""
    marks = Marks()
    return marks.add(text) + marks.end(), marks.found
