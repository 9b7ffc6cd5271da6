"""What `--include` and `--exclude` choose: patterns as in a `.gitignore`, and those that are wrong or match nothing."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec


class BadPattern(Exception):
    """A pattern that git would not take either."""

    def __init__(self, option: str, pattern: str, reason: str) -> None:
        super().__init__(f"{option} {pattern!r} is no pattern as in a .gitignore: {reason}")


class Patterns:
    """The patterns of one option; notes which of them match something."""

    def __init__(self, option: str, given: Sequence[str]) -> None:
        """Raises BadPattern."""
        self._option = option
        # Under LC_ALL=C Python holds what is not ASCII in an argument as escapes.
        texts = [text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for text in given]
        self._each = {text: self._compiled(text) for text in texts}
        self._all = GitIgnoreSpec([pattern for pattern in self._each.values() if pattern])
        self._idle = dict(self._each)

    def match(self, path: str) -> bool:
        """Whether the last of the patterns that says something of this path, a folder's with a stroke, chooses it."""
        for text, pattern in [*self._idle.items()]:
            if pattern and pattern.match_file(path):
                del self._idle[text]
        return bool(self._all.match_file(path))

    def hints(self, folder: Path) -> Iterator[str]:
        """A sentence for each pattern that has matched nothing."""
        for text in self._idle:
            yield f"{self._option} {text!r} {_hint(text, folder)}"

    def _compiled(self, text: str) -> Any:
        try:
            return next(iter(GitIgnoreSpec.from_lines([text]).patterns), None)
        except (ValueError, re.error) as error:
            raise BadPattern(self._option, text, str(error)) from error


def _hint(text: str, folder: Path) -> str:
    if not text.strip():
        return "is empty and says nothing"
    if text.startswith("#"):
        return f"is a comment, as in a .gitignore: write '\\{text}'"
    for above in (f"{folder.absolute()}/", f"{folder}/", "./"):
        if text.startswith(above):
            return f"matches nothing: a path begins at the folder, as in '/{text.removeprefix(above)}'"
    return "matches nothing"
