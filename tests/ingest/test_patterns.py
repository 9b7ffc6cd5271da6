from pathlib import Path

import pytest

from ingest.listing import EmptyFolder, list_files
from ingest.patterns import BadPattern


@pytest.mark.parametrize("pattern", ["[z-a].txt", "a\\", "!"])
@pytest.mark.parametrize("option", ["include", "exclude"])
def test_a_pattern_that_git_would_not_take_is_refused_by_name(folder: Path, option: str, pattern: str) -> None:
    with pytest.raises(BadPattern) as raised:
        list_files(folder, **{option: ["*.md", pattern]})
    assert str(raised.value).startswith(f"--{option} {pattern!r} is no pattern as in a .gitignore: ")


def test_patterns_that_match_nothing_are_told_with_what_may_be_meant(folder: Path) -> None:
    absolute = str(folder.absolute() / "leave.md")
    given = ["./drafts", absolute, "#x", "", "*.tmp", "/travel.txt", "!leave.md"]
    assert list_files(folder, exclude=given).notes == (
        "--exclude './drafts' matches nothing: a path begins at the folder, as in '/drafts'",
        f"--exclude {absolute!r} matches nothing: a path begins at the folder, as in '/leave.md'",
        "--exclude '#x' is a comment, as in a .gitignore: write '\\#x'",
        "--exclude '' is empty and says nothing",
        "--exclude '*.tmp' matches nothing",
    )


def test_a_pattern_for_what_is_hidden_or_in_no_format_matches_something(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / "song.mp3").write_bytes(b"")
    assert list_files(folder, include=["*.txt", "*.md"], exclude=[".git/", "*.mp3"]).notes == ()


def test_a_pattern_given_under_an_ascii_locale_means_the_same(folder: Path) -> None:
    (folder / "手册.txt").write_text("text", encoding="utf-8")
    escaped = "手册*".encode().decode("ascii", "surrogateescape")
    assert list(list_files(folder, include=[escaped]).files) == ["手册.txt"]


def test_a_folder_that_patterns_leave_nothing_of_is_refused_with_that_reason(folder: Path) -> None:
    with pytest.raises(EmptyFolder, match=r"documents has no file that --include and --exclude leave; nothing was"):
        list_files(folder, exclude=["*"])
    with pytest.raises(EmptyFolder, match=r"leave; --include '\*.pdf' matches nothing; nothing was changed"):
        list_files(folder, include=["*.pdf"])
