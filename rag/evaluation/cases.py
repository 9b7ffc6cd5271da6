"""A file of questions → what is asked and expected; every bad line is named before anything starts."""

import difflib
import json
import re
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from ingest.command import CommandRefused
from rag.evaluation.matching import words
from rag.schemas import Text, Turn

MOST_NAMED = 20
"""Bad lines that are named one by one."""
LIKE = 0.82
"""Likeness from which an unknown field is taken for a known one, mistyped."""
EXPECTED = ("file", "page", "quote", "pattern", "answer")


def _stripped(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty: give it words, or null")
    return text.strip()


Words = Annotated[Text, AfterValidator(_stripped)]


class BadQuestions(CommandRefused):
    """A file holds lines that are no questions, or none that are."""


class Case(BaseModel):
    """One line: a question, and as far as it is known what a right answer says and where that stands.

    Fields that no name of ours resembles are left alone.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    question: Words
    id: Annotated[str, Field(coerce_numbers_to_str=True)] = ""
    """Names the question in another run; where it has none, its own words do."""
    language: str | None = None
    answerable: bool | None = None
    """Whether the documents answer it. Where it is not said: yes if an answer is expected, else not known."""
    answer: Words | None = None
    pattern: Words | None = None
    file: Annotated[Words, AfterValidator(lambda name: str(PurePosixPath(name)))] | None = None
    page: Annotated[int, Field(ge=1)] | None = None
    quote: Words | None = None
    history: tuple[Turn, ...] = ()

    @field_validator("pattern")
    @classmethod
    def _can_be_read(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"{error}: not a regular expression of Python") from error
        return pattern

    @field_validator("answer", "quote")
    @classmethod
    def _has_words(cls, text: str | None) -> str | None:
        if text is not None and not words(text):
            raise ValueError("holds no word that could be looked for")
        return text

    @model_validator(mode="before")
    @classmethod
    def _knows_its_names(cls, line: Any) -> Any:
        for name in line.keys() - cls.model_fields.keys():
            if near := difflib.get_close_matches(name, cls.model_fields, n=1, cutoff=LIKE):
                raise ValueError(f"no field is called {name!r}; did you mean {near[0]!r}?")
        return line

    @model_validator(mode="after")
    def _holds_together(self) -> "Case":
        expected = [name for name in EXPECTED if getattr(self, name) is not None]
        if self.answerable is False and expected:
            raise ValueError(
                f"is not answerable, but has {', '.join(expected)}: set those to null, or answerable to true"
            )
        if self.file is None and (alone := [name for name in ("page", "quote") if getattr(self, name) is not None]):
            raise ValueError(f"has {' and '.join(alone)} without the file: add `file`")
        if self.history and self.history[-1].role != "assistant":
            raise ValueError("history ends with the user: its last turn is the answer before the question")
        if self.answerable is None and expected:
            return self.model_copy(update={"answerable": True})
        return self

    @property
    def key(self) -> str:
        """Names the question among all of its file and in another run."""
        return self.id or self.question


def read_cases(file: Path) -> list[Case]:
    """The questions of a JSON Lines file. Raises BadQuestions with every bad line, its number and what mends it."""
    cases: list[tuple[int, Case]] = []
    bad: list[str] = []
    for number, line in enumerate(file.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            try:
                cases.append((number, _case(line)))
            except ValueError as error:
                bad.append(f"line {number}: {error}")
    bad += _asked_twice(cases)
    if bad:
        more = [f"… and {len(bad) - MOST_NAMED} more"] if len(bad) > MOST_NAMED else []
        raise BadQuestions("\n  ".join([f"{file}: nothing was asked", *bad[:MOST_NAMED], *more]))
    if not cases:
        raise BadQuestions(f'{file} holds no question: write one a line, as {{"question": "…", "file": "…"}}')
    return [case for _, case in cases]


def _case(line: bytes) -> Case:
    """One line read. Raises ValueError with a sentence."""
    try:
        read = json.loads(line.decode("utf-8"), object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}: save the file in UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at character {error.pos + 1} ({error.msg}): each line is one object") from error
    except RecursionError as error:
        raise ValueError("nested too deeply for a question") from error
    if not isinstance(read, dict):
        raise ValueError('not an object: each line is one, as {"question": "…", "file": "…"}')
    try:
        return Case.model_validate(read)
    except ValidationError as error:
        raise ValueError("; ".join(_plainly(one) for one in error.errors())) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if twice := [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]:
        raise ValueError(f"has {', '.join(map(repr, twice))} twice: keep one")
    return dict(pairs)


def _plainly(error: Any) -> str:
    """One of pydantic's errors in our words."""
    place = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        return f"has no `{place}`: add it"
    return ": ".join(filter(None, [place, error["msg"].removeprefix("Value error, ")]))


def _asked_twice(cases: list[tuple[int, Case]]) -> list[str]:
    """What is wrong with the lines that another line's name stands for too."""
    first: dict[str, int] = {}
    bad = []
    for number, case in cases:
        if (before := first.setdefault(case.key, number)) != number:
            what = f"the id {case.id!r}" if case.id else "the question"
            bad.append(f"line {number}: has {what} of line {before}: give each line an `id` of its own")
    return bad
