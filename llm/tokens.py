"""A model's tokens of a text, without the model: all that a process needs which only cuts texts."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class ModelTokens:
    """The tokenizer of a model in a folder, or of a hub id. Pickled, it is that name; it loads with the first text."""

    model: str

    def __reduce__(self) -> "tuple[type[ModelTokens], tuple[str]]":
        return type(self), (self.model,)

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """A copy without truncation and padding: counting must see what encoding would cut."""
        from tokenizers import Tokenizer

        file = Path(self.model) / "tokenizer.json"
        found = Tokenizer.from_file(str(file)) if file.is_file() else Tokenizer.from_pretrained(self.model)
        found.no_truncation()
        found.no_padding()
        return found

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The character span of each of the text's tokens, without special tokens, in order."""
        return self.tokenizer.encode(text, add_special_tokens=False).offsets
