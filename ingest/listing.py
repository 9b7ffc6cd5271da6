"""The files of a folder that are to be in the knowledge base."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ingest.load import is_supported
from ingest.patterns import Patterns
from ingest.report import first_of

OF_A_STORE = re.compile(r"chroma|.+\.lexical|.+\.lock|.+\.sqlite3.*")
"""What lies in a store of knowledge bases."""


class FolderNotFound(Exception):
    """The folder to ingest is not there."""


class EmptyFolder(Exception):
    """The folder has no file to ingest; its documents are not taken out for that."""


@dataclass(frozen=True)
class Listing:
    """The files below a folder by source, the POSIX path below it."""

    files: dict[str, Path]
    skipped: tuple[str, ...] = ()
    """Files of a format that is not supported, and what is no file, such as a pipe, which would never end."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Folders that cannot be listed, with the reason: what was in them is not gone."""
    notes: tuple[str, ...] = ()
    """What else is left out, and patterns that match nothing."""

    def may_hold(self, file: str) -> bool:
        """Whether a file may still be there: it is listed, or is in a folder that cannot be."""
        hidden = tuple("" if folder == "." else f"{folder}/" for folder in self.unreadable)
        return file in self.files or file.startswith(hidden)


def list_files(folder: Path, *, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Listing:
    """The files below `folder` that are not hidden, that match `include` where it is given, and not `exclude`.

    Both are patterns as in a `.gitignore`: `*.tmp` and `drafts/` match anywhere, `/drafts` at the top. Links out of
    the folder and links to folders are not followed. Raises FolderNotFound, EmptyFolder and BadPattern.
    """
    if not folder.is_dir():
        raise FolderNotFound(f"{folder} is a file, not a folder" if folder.exists() else f"there is no folder {folder}")
    walk = _Walk(folder, include, exclude)
    seen = dict(walk.files())
    files = {source: path for source, path in sorted(seen.items()) if is_supported(path) and not _is_special(path)}
    notes = tuple(walk.notes())
    if not files and not walk.unreadable:
        raise EmptyFolder("; ".join((_emptiness(folder, sorted(seen), walk), *notes, "nothing was changed")))
    return Listing(files, tuple(sorted(seen.keys() - files.keys())), walk.unreadable, notes)


def is_hidden(source: str) -> bool:
    """Whether a file or a folder above it has a name that begins with a full stop."""
    return source.startswith(".") or "/." in source


# Path's own would raise for a link whose end this user may not look at; reading it will say so.
def _is_special(path: Path) -> bool:
    return os.path.exists(path) and not os.path.isfile(path)  # noqa: PTH110, PTH113


def _emptiness(folder: Path, seen: Sequence[str], walk: "_Walk") -> str:
    chosen = " that --include and --exclude leave" if walk.unchosen else ""
    if seen:
        return f"{folder} has no file of a supported format{chosen}, only {first_of(seen)}"
    return f"{folder} has no file{chosen}"


class _Walk:
    """One walk over a folder, which notes what it cannot list and what it leaves out."""

    def __init__(self, folder: Path, include: Sequence[str], exclude: Sequence[str]) -> None:
        self.folder, self.inside = folder, folder.resolve()
        self.include, self.exclude = Patterns("--include", include), Patterns("--exclude", exclude)
        self.everything = not include
        self.unreadable: dict[str, str] = {}
        self.unchosen = 0
        self.hidden: list[str] = []
        self.outside: list[str] = []
        self.stores: list[str] = []

    def files(self) -> Iterator[tuple[str, Path]]:
        for parent, folders, names in os.walk(self.folder, onerror=self.note):
            if _is_store(parent, folders, names):
                self.stores.append(self.source(Path(parent)))
                folders[:], names = _not_of_a_store(folders), _not_of_a_store(names)
            folders[:] = sorted(name for name in folders if self.enters(Path(parent, name)))
            for path in (Path(parent, name) for name in sorted(names)):
                if self.takes(path):
                    yield self.source(path), path

    def enters(self, folder: Path) -> bool:
        source = self.source(folder)
        is_chosen = not self.exclude.match(f"{source}/")
        return self.is_in(source, folder, is_chosen=is_chosen)

    def takes(self, file: Path) -> bool:
        source = self.source(file)
        is_included, is_excluded = self.include.match(source), self.exclude.match(source)
        return self.is_in(source, file, is_chosen=(self.everything or is_included) and not is_excluded)

    def is_in(self, source: str, path: Path, *, is_chosen: bool) -> bool:
        if not is_chosen:
            self.unchosen += 1
        elif path.name.startswith("."):
            self.hidden.append(source)
        elif path.is_symlink() and self.leads_out(path):
            self.outside.append(source)
        else:
            return True
        return False

    def leads_out(self, link: Path) -> bool:
        try:
            return not link.resolve().is_relative_to(self.inside)
        except (OSError, RuntimeError):  # it leads to itself, which reading it will say
            return False

    def note(self, error: OSError) -> None:
        self.unreadable[self.source(Path(error.filename))] = error.strerror or str(error)

    def notes(self) -> Iterator[str]:
        """A sentence for all that was left out of a kind, and for each pattern without effect."""
        kinds = {"hidden": self.hidden, "links out of the folder": self.outside, "a store's own files": self.stores}
        for kind, sources in kinds.items():
            if sources:
                yield f"left out, {kind}: {first_of(sorted(sources))} ({len(sources)})"
        yield from self.include.hints(self.folder)
        yield from self.exclude.hints(self.folder)

    def source(self, path: Path) -> str:
        """The name a file is cited by."""
        # Under LC_ALL=C Python holds names that are not ASCII as escapes.
        return os.fsencode(path.relative_to(self.folder).as_posix()).decode("utf-8", "backslashreplace")


def _is_store(parent: str, folders: Sequence[str], names: Sequence[str]) -> bool:
    is_likely = "chroma" in folders and any(name.endswith(".sqlite3") for name in names)
    return is_likely and os.path.isfile(os.path.join(parent, "chroma", "chroma.sqlite3"))  # noqa: PTH113, PTH118


def _not_of_a_store(names: Sequence[str]) -> list[str]:
    return [name for name in names if not OF_A_STORE.fullmatch(name)]
