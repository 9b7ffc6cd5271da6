"""The terms of a text, by which the lexical index finds it: Chinese, Japanese and Korean cut, identifiers in parts."""

import logging
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

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
    return [term for run in RUN.finditer(unicodedata.normalize("NFKC", text)) for term in _of_run(run)]


def _of_run(run: re.Match[str]) -> Iterable[str]:
    if run["han"]:
        return _segmenter().cut_for_search(run["han"], HMM=False)
    if run["syllables"]:
        return _pairs(run["syllables"])
    return _of_word(run["word"][:MAX_TERM])


def _pairs(syllables: str) -> list[str]:
    return [syllables[index : index + 2] for index in range(max(1, len(syllables) - 1))]


def _of_word(word: str) -> Iterator[str]:
    yield word.lower()
    parts = [part for piece in CAMEL.sub(" ", word).split() for part in PART.findall(piece)]
    if len(parts) > 1:
        yield from (part.lower() for part in parts)


@cache
def _segmenter() -> Any:
    """A jieba dictionary of our own: its default one logs to stderr and keeps its cache in a folder that all share."""
    from llm.models import default_cache

    with warnings.catch_warnings(action="ignore"):  # it imports pkg_resources
        import jieba

    jieba.setLogLevel(logging.CRITICAL)
    folder = default_cache() / "jieba"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    segmenter = jieba.Tokenizer()
    segmenter.tmp_dir = str(folder)
    return segmenter
