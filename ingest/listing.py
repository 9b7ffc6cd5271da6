"""The files of a folder that are to be in the knowledge base."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pathspec import GitIgnoreSpec

from ingest.load import FORMATS, is_supported


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

    def may_hold(self, file: str) -> bool:
        """Whether a file may still be there: it is listed, or is in a folder that cannot be."""
        hidden = tuple("" if folder == "." else f"{folder}/" for folder in self.unreadable)
        return file in self.files or file.startswith(hidden)


def list_files(folder: Path, *, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Listing:
    """The files below `folder` that are not hidden, that match `include` where it is given, and not `exclude`.

    Both are patterns as in a `.gitignore`: `*.tmp` and `drafts/` match anywhere, `/drafts` at the top. Raises
    FolderNotFound and EmptyFolder.
    """
    if not folder.is_dir():
        raise FolderNotFound(f"{folder} is a file, not a folder" if folder.exists() else f"there is no folder {folder}")
    walk = _Walk(folder, GitIgnoreSpec.from_lines(include or ["*"]), GitIgnoreSpec.from_lines(exclude))
    seen = dict(walk.files())
    files = {source: path for source, path in sorted(seen.items()) if is_supported(path) and not _is_special(path)}
    if not files and not walk.unreadable:
        chosen = " that --include and --exclude leave" if include or exclude else ""
        formats = ", ".join(sorted(FORMATS))
        raise EmptyFolder(f"{folder} has no file of a supported format{chosen} ({formats}); nothing was changed")
    return Listing(files, tuple(sorted(seen.keys() - files.keys())), walk.unreadable)


def is_hidden(source: str) -> bool:
    """Whether a file or a folder above it has a name that begins with a full stop."""
    return source.startswith(".") or "/." in source


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


class _Walk:
    """One walk over a folder, which notes what it cannot list."""

    def __init__(self, folder: Path, include: GitIgnoreSpec, exclude: GitIgnoreSpec) -> None:
        self.folder, self.include, self.exclude = folder, include, exclude
        self.unreadable: dict[str, str] = {}

    def files(self) -> Iterator[tuple[str, Path]]:
        inside = self.folder.resolve()
        for parent, folders, names in os.walk(self.folder, onerror=self.note):
            folders[:] = sorted(name for name in folders if self.enters(Path(parent, name)))
            for path in (Path(parent, name) for name in sorted(names) if not name.startswith(".")):
                source = self.source(path)
                if not self.include.match_file(source) or self.exclude.match_file(source):
                    continue
                if not path.is_symlink() or path.resolve().is_relative_to(inside):
                    yield source, path

    def enters(self, folder: Path) -> bool:
        return not folder.name.startswith(".") and not self.exclude.match_file(f"{self.source(folder)}/")

    def note(self, error: OSError) -> None:
        self.unreadable[self.source(Path(error.filename))] = error.strerror or str(error)

    def source(self, path: Path) -> str:
        """The name a file is cited by."""
        # Under LC_ALL=C Python holds names that are not ASCII as escapes.
        return os.fsencode(path.relative_to(self.folder).as_posix()).decode("utf-8", "backslashreplace")
