"""Control tokens: those that the template writes become ids, those that stand in a message stay the text they are."""

import re
import secrets
from collections import defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import orjson

from llm.prompt.length import Shortest

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer
    from transformers import PreTrainedTokenizerBase

PRIVATE = 0x100000  # the private use plane of the secret spellings: 65,534 characters
SECRET_LENGTH = 8  # characters, 128 bits, so that no text holds it by chance or by guessing


class UnsupportedTokenizer(TypeError):
    """The tokenizer gives no way to tell control tokens in a message from those of the template."""


class ControlTokens:
    """A model's tokenizer whose control tokens have a secret spelling, so that no text can hold one.

    Control tokens are the added ones but for runs of blanks, marked special or not: DeepSeek's turn tokens and Qwen's
    `<think>` are not. (`split_special_tokens` would not do: it is a switch on a tokenizer that all threads share, and
    it leaves the unmarked ones whole.) All else is the model's own tokenizer in one run over the whole prompt, so what
    depends on neighbours is right: merges, blanks that a token swallows, the blank before SentencePiece's first word.
    """

    def __init__(self, backend: "Tokenizer") -> None:
        from tokenizers import Tokenizer

        described = orjson.loads(backend.to_str())
        added = [token for token in described["added_tokens"] if not _is_blank(token["content"])]
        self.tokens = [token["content"] for token in added]
        self.pattern = re.compile(_longest_of(self.tokens))
        self._secret = "".join(_private(secrets.randbelow(65534)) for _ in range(SECRET_LENGTH))
        self._spelling = {token: self._secret + _private(at) for at, token in enumerate(self.tokens)}
        self._tokenizer = Tokenizer.from_buffer(orjson.dumps(_respelled(described, self._spelling)))
        spelled_ids = [self._tokenizer.token_to_id(self._spelling[token]) for token in self.tokens]
        self._ids = dict(zip(spelled_ids, [token["id"] for token in added], strict=True))
        normalizer = described["normalizer"]
        self._conditional = any(token["single_word"] or (normalizer and token["normalized"]) for token in added)
        self._shortest = Shortest(described, backend.normalizer)

    def spell(self, rendered: str) -> str:
        """Give a text's control tokens their secret spelling."""
        return self.pattern.sub(lambda found: self._spelling[found[0]], rendered)

    def encode(self, spelled: str) -> list[int]:
        """The ids of a text, of whose tokens only the secretly spelled ones are control tokens."""
        encoding = self._tokenizer.encode(spelled, add_special_tokens=False)
        if self._conditional:
            encoding = self._under_conditions(spelled, encoding)
        return [self._ids.get(id, id) for id in encoding.ids]

    def at_least(self, spelled: str, enough: int) -> int | None:
        """So many ids the text surely has, told in no time; None when that is fewer than `enough` or not known."""
        bare, number = re.subn(f"{self._secret}.", "", spelled)
        rest = self._shortest.at_least(bare, enough - number)
        return None if rest is None else rest + number

    def _under_conditions(self, spelled: str, encoding: "Encoding") -> "Encoding":
        """The encoding with those control tokens as text that the tokenizer does not take where they stand: there are
        tokens for whole words only, and normalised ones that SentencePiece wants a blank before.
        """
        taken = [span for id, span in zip(encoding.ids, encoding.offsets, strict=True) if id in self._ids]
        if len(taken) == spelled.count(self._secret):
            return encoding
        token_of = {spelling: token for token, spelling in self._spelling.items()}

        def as_taken(found: re.Match[str]) -> str:
            return found[0] if any(start <= found.start() < end for start, end in taken) else token_of[found[0]]

        return self._tokenizer.encode(re.sub(f"{self._secret}.", as_taken, spelled), add_special_tokens=False)


def backend_of(tokenizer: "PreTrainedTokenizerBase") -> "Tokenizer":
    """What tokenizer.json describes. Raises UnsupportedTokenizer where there is none: Mistral's own, tiktoken's."""
    from tokenizers import Tokenizer

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if isinstance(backend, Tokenizer):
        return backend
    raise UnsupportedTokenizer(
        f"{type(tokenizer).__name__} has no tokenizer.json, without which control tokens in a message cannot be kept "
        'out of the prompt: start the engine with tokenizer_mode="hf", or with a tokenizer that has one'
    )


def _is_blank(token: str) -> bool:
    """Whether a token is a run of blanks, which controls nothing (`▁` is SentencePiece's blank)."""
    return not token.replace("▁", " ").strip()


def _private(number: int) -> str:
    return chr(PRIVATE + number)


def _respelled(described: dict[str, Any], spelling: dict[str, str]) -> dict[str, Any]:
    """The description of a tokenizer, with other spellings of some of its added tokens."""
    added = [
        {**token, "content": spelling.get(token["content"], token["content"])} for token in described["added_tokens"]
    ]
    model = _with_pieces_respelled(described["model"], spelling)
    unused = {"truncation": None, "padding": None, "post_processor": None}
    return {**described, **unused, "added_tokens": added, "model": model}


def _with_pieces_respelled(model: dict[str, Any], spelling: dict[str, str]) -> dict[str, Any]:
    """The model without a way from plain text to the ids of the respelled tokens: there are models that know a piece of
    that spelling (as a whole word under `ignore_merges`, as the end of their merges, as Unigram's likeliest piece).
    """
    changed = dict(model)
    bytes_stay = {f"<0x{byte:02X}>" for byte in range(256)} if model.get("byte_fallback") else set()
    spelling = {token: spelled for token, spelled in spelling.items() if token not in bytes_stay}
    if isinstance(model["vocab"], dict):
        changed["vocab"] = {spelling.get(piece, piece): id for piece, id in model["vocab"].items()}
    else:  # Unigram's pieces with their scores, in the order of their ids
        changed["vocab"] = [[spelling.get(piece, piece), score] for piece, score in model["vocab"]]
    if "merges" in model:
        gone = spelling.keys()
        kept = (pair for pair in model["merges"] if gone.isdisjoint((*pair, "".join(pair))))
        changed["merges"] = list(kept)
    if isinstance(model.get("unk_token"), str):
        changed["unk_token"] = spelling.get(model["unk_token"], model["unk_token"])
    return changed


def _longest_of(words: Collection[str]) -> str:
    """A pattern for the longest of the words: a trie, so its cost does not grow with their number."""
    tails: dict[str, list[str]] = defaultdict(list)
    for word in filter(None, words):
        tails[word[0]].append(word[1:])
    if not tails:
        return "" if words else r"(?!)"
    branches = "|".join(re.escape(first) + _longest_of(tail) for first, tail in tails.items())
    if "" in words:
        return f"(?:{branches})?"
    return f"(?:{branches})" if len(tails) > 1 else branches
