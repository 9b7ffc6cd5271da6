"""The terms of a text, by which the lexical index finds it: Chinese, Japanese and Korean cut, identifiers in parts."""

import re
import unicodedata
from collections.abc import Callable
from functools import cache, lru_cache

VERSION = "1"
"""Raise it when `terms` gives other terms: an index of another version is made anew."""
HAN, KANA, HANGUL = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff々〇", "\u3040-\u30ff", "\u1100-\u11ff\uac00-\ud7af"
RUN = re.compile(rf"(?P<han>[{HAN}]+)|(?P<syllables>[{KANA}ー]+|[{HANGUL}]+)|(?P<word>[^\W{HAN}{KANA}{HANGUL}]+"
                 rf"(?:[_.\-+#]+[^\W{HAN}{KANA}{HANGUL}]+)*(?:\+\+|#)?)")  # fmt: skip
PART = re.compile(r"[^\W\d_]+|\d+")
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
MAX_TERM = 100
"""Characters: longer runs are base64 or the like, which nobody asks for."""


def terms(text: str) -> list[str]:
    """The terms by which `text` is found, in its order: lower-case, compatibility forms folded (NFKC).

    An identifier gives itself and its parts (`maxTokens` → maxtokens, max, tokens), Chinese gives words and the words
    inside them, kana and hangul give pairs of characters.
    """
    found: list[str] = []
    for run in RUN.finditer(text if text.isascii() else unicodedata.normalize("NFKC", text)):
        if run.lastgroup == "word":
            found += _of_word(run[0][:MAX_TERM])
        elif run.lastgroup == "han":
            found += _words()(run[0], False)  # no guesses at words that the dictionary lacks
        else:
            found += _pairs(run[0])
    return found


def _pairs(syllables: str) -> list[str]:
    return [syllables[index : index + 2] for index in range(max(1, len(syllables) - 1))]


@lru_cache(maxsize=2**14)  # a text's words are mostly the same few thousand
def _of_word(word: str) -> tuple[str, ...]:
    parts = [part for piece in CAMEL.sub(" ", word).split() for part in PART.findall(piece)]
    return (word.lower(), *(part.lower() for part in parts)) if len(parts) > 1 else (word.lower(),)


@cache
def _words() -> Callable[[str, bool], list[str]]:
    """jieba's words in search mode, by its Rust port; loading its dictionary takes 0.1 s."""
    from rjieba import cut_for_search

    return cut_for_search
