"""How few tokens a text can have, told from its length, so that megabytes are refused without tokenising them."""

import math
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer

BYTE_PIECES = {f"<0x{byte:02X}>" for byte in range(256)}
CUTTING = {"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split", "UnicodeScripts"}  # they drop nothing
# GPT-2's characters for bytes: a printable one of Latin-1 stands for itself, the others are numbered from 256 on.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
CHARACTER_OF = {byte: chr(byte) for byte in PRINTABLE} | {byte: chr(256 + at) for at, byte in enumerate(OTHERS)}


class Shortest:
    """Counts the tokens of a text as if each were as long as the longest of the vocabulary.

    `described` is what tokenizer.json says. Nothing can be told of a tokenizer that may drop text or make one token of
    any number of unknown characters; bytes that a byte-level vocabulary lacks are not counted.
    """

    def __init__(self, described: dict[str, Any], normalizer: "Normalizer | None") -> None:
        self._normalizer = normalizer
        vocab = described["model"]["vocab"]
        pieces = set(vocab) if isinstance(vocab, dict) else {piece for piece, _ in vocab}
        added = described["added_tokens"]
        self._swallows_blanks = any(token["lstrip"] or token["rstrip"] for token in added)
        # In a byte-level vocabulary each character of a piece is a byte.
        self._by_bytes = "ByteLevel" in _kinds(described["pre_tokenizer"])
        self._unknown = bytes(byte for byte, character in CHARACTER_OF.items() if character not in pieces)
        lengths = chain(map(len, pieces), (len(token["content"].encode()) for token in added))
        self._longest = max(lengths, default=1)
        self._tells = _keeps_all(described, pieces)

    def at_least(self, text: str, enough: int) -> int | None:
        """The lower bound if it reaches `enough`, else None. `text` holds no control tokens."""
        if not self._tells or self._bound(text) < enough:
            return None
        if self._normalizer:
            text = self._normalizer.normalize_str(text)
        if self._swallows_blanks:
            text = "".join(text.replace("▁", " ").split())
        return bound if (bound := self._bound(text)) >= enough else None

    def _bound(self, text: str) -> int:
        size = len(text.encode().translate(None, self._unknown)) if self._by_bytes else len(text)
        return math.ceil(size / self._longest)


def _keeps_all(described: dict[str, Any], pieces: set[str]) -> bool:
    """Whether no known character is dropped and none joins more neighbours than a piece has."""
    model, cutting = described["model"], described["pre_tokenizer"]
    kinds = _kinds(cutting)
    knows_all = "ByteLevel" in kinds or (model.get("byte_fallback") and pieces >= BYTE_PIECES)
    removes = any(part.get("behavior") == "Removed" for part in _parts(cutting))
    return model["type"] in ("BPE", "Unigram") and bool(knows_all) and kinds <= CUTTING and not removes


def _kinds(cutting: dict[str, Any] | None) -> set[str]:
    return {part["type"] for part in _parts(cutting)}


def _parts(cutting: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps of a pre-tokenizer."""
    if cutting is None:
        return []
    if cutting["type"] == "Sequence":
        return [part for each in cutting["pretokenizers"] for part in _parts(each)]
    return [cutting]
