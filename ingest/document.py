"""What loading gives: a document's text with the places that a citation needs, or the reason why there is none."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Scalar = str | int | float | bool


class Unreadable(Exception):
    """The content of a file is not what its name says, or cannot be read; says why in a plain sentence."""


class Protected(Unreadable):
    """None of the given passwords opens the file."""

    def __init__(self, passwords: int) -> None:
        tried = f", and none of the {passwords} given opens it" if passwords else ": give it with --password"
        super().__init__(f"is protected by a password{tried}")


@dataclass(frozen=True)
class LoadOptions:
    """What a file may need and may cost; another value of any of them can change what is loaded."""

    passwords: tuple[str, ...] = ()
    ocr: bool = False
    max_depth: int = 3
    """Archives within archives, attachments within mails."""
    max_member_bytes: int = 200 * 2**20
    """Of one member of an archive, unpacked."""
    max_unpacked_bytes: int = 2 * 2**30
    """Of one file with all that is packed in it, at any depth."""
    max_members: int = 20_000
    """Of one file, at any depth."""


@dataclass(frozen=True)
class LoadedDocument:
    """One file's text. Offsets are characters of `text`; `pages` and `headings` are in the order of the text."""

    source: str
    text: str
    pages: tuple[tuple[int, int | str], ...] = ()
    """Where each place starts, and its number (from 1) or name; empty where the format has no places."""
    headings: tuple[tuple[int, int, str], ...] = ()
    """Each heading's start, its level from 1 to 6, and its title."""
    problems: tuple[str, ...] = ()
    """What is missing from the text although the file went in."""
    line_is_unit: bool = False
    """A line stands alone, as a row of a table does."""
    has_lines: bool = False
    """Lines of the text are lines of the file."""
    place_kind: str = "page"
    """What `pages` counts: page, slide, sheet or cell."""
    metadata: Mapping[str, Scalar] = field(default_factory=dict)
    """What the file says about itself, such as its title and author."""


@dataclass(frozen=True)
class FailedSource:
    """A source that has no document; `skipped` when its format is one that we do not read."""

    source: str
    reason: str
    skipped: bool = False


@dataclass(frozen=True)
class Member:
    """A file packed in another; `path` is relative, POSIX and free of `..`."""

    path: str
    content: bytes


@dataclass(frozen=True)
class FailedMember:
    """A packed file that cannot be had, and why."""

    path: str
    reason: str
