"""Which texts say nearly the same, in any language."""

import re
from itertools import pairwise

from ingest.terms import HAN, HANGUL, KANA

NEAR = 0.8
"""Resemblance above which two texts are one to a reader: about one word in twenty differs, or Chinese character."""
WORD = re.compile(rf"[{HAN}{KANA}{HANGUL}]|[^\W{HAN}{KANA}{HANGUL}]+")
NUMBER = re.compile(r"[\d零〇一二两三四五六七八九十百千万亿]+")

Pairs = frozenset[tuple[str, str]]


def resemblance(one: Pairs, two: Pairs) -> float:
    """The share, in [0, 1], that two texts have in common of the `pairs_of_words` of both.

    Broder 1997, "On the resemblance and containment of documents", with two words in a shingle.
    """
    return len(one & two) / (len(one | two) or 1)


def pairs_of_words(text: str) -> Pairs:
    """Each word, or Chinese, Japanese or Korean character, with the one before it; the first with none."""
    return frozenset(pairwise(["", *WORD.findall(text.casefold())]))


class Seen:
    """The texts that have been taken, to be asked whether a further one is nearly one of them."""

    def __init__(self) -> None:
        self._taken: list[tuple[Pairs, list[str]]] = []

    def take(self, text: str) -> bool:
        """Take the text unless one taken before says nearly the same; whether it was taken.

        Texts that differ in a number never do: last year's rule beside this year's. A text without words, such as a
        line of dashes, is like no other.
        """
        pairs, numbers = pairs_of_words(text), NUMBER.findall(text)
        if any(numbers == others and resemblance(pairs, taken) > NEAR for taken, others in self._taken):
            return False
        self._taken.append((pairs, numbers))
        return True
