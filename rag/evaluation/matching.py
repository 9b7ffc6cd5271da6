"""Whether an answer says what is expected, and whether a passage or a quote is the place where that stands."""

import re
import unicodedata

from ingest.terms import terms
from rag.likeness import WORD

HELD = 0.8
"""Share of the expected quote's terms that a passage holds at least: a reader may set a table's row otherwise."""
SAME = 0.5
"""Share of the shorter of two quotes that the other holds at least: both are cut at sentences, not always the same."""
THOUSANDS = re.compile(r"(?<=\d)[,，](?=\d{3}(?!\d))")


def words(text: str) -> list[str]:
    """The words as they are compared: without case, marks and a number's thousands signs; CJK by the character."""
    return WORD.findall(THOUSANDS.sub("", unicodedata.normalize("NFKC", text)).casefold())


def says(answer: str, *, pattern: str | None, expected: str | None) -> bool | None:
    """Whether the answer is right: the pattern is found in it, without regard to case, or else the expected words stand
    in it, one behind the other; None where nothing is expected."""
    if pattern is not None:
        return re.search(pattern, answer, re.IGNORECASE | re.DOTALL) is not None
    if expected is None:
        return None
    said, wanted = words(answer), words(expected)
    return any(said[at : at + len(wanted)] == wanted for at in range(len(said) - len(wanted) + 1))


def holds(passage: str, quote: str) -> bool:
    """Whether the passage holds the quote, nearly word by word."""
    wanted = set(terms(quote)) or set(words(quote))
    there = set(terms(passage)) or set(words(passage))
    return len(wanted & there) >= HELD * len(wanted)


def overlaps(one: str, two: str) -> bool:
    """Whether two quotes are of the same place."""
    first, second = (set(terms(text)) or set(words(text)) for text in (one, two))
    return len(first & second) >= SAME * max(1, min(len(first), len(second)))
