import os
from pathlib import Path

import pytest

from ingest.listing import EmptyFolder, FolderNotFound, is_hidden, list_files


def fill(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text", encoding="utf-8")


def test_hidden_files_and_other_formats_are_left_out_and_the_latter_named(folder) -> None:
    fill(folder, ".git/a.txt", ".hidden.txt", "song.mp3")
    listing = list_files(folder)
    assert list(listing.files) == ["guide.txt", "leave.md", "travel.txt"]
    assert listing.skipped == ("song.mp3",)


def test_links_that_leave_the_folder_are_not_followed(folder, tmp_path) -> None:
    fill(tmp_path, "secret.txt", "outside/a.txt")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "outside").symlink_to(tmp_path / "outside")
    (folder / "inside.txt").symlink_to(folder / "travel.txt")
    assert list(list_files(folder).files) == ["guide.txt", "inside.txt", "leave.md", "travel.txt"]


@pytest.mark.parametrize(
    ("include", "exclude", "left"),
    [
        (["*.md"], [], ["leave.md", "手册/草稿/b.md"]),
        ([], ["*.txt"], ["leave.md", "手册/草稿/b.md"]),
        (["手册/"], [], ["手册/a.txt", "手册/草稿/b.md"]),
        ([], ["草稿/"], ["guide.txt", "leave.md", "travel.txt", "手册/a.txt"]),
        (["*.md", "*.txt"], ["/guide.txt", "手册"], ["leave.md", "travel.txt"]),
    ],
)
def test_patterns_choose_as_in_a_gitignore(folder, include, exclude, left) -> None:
    fill(folder, "手册/a.txt", "手册/草稿/b.md")
    assert list(list_files(folder, include=include, exclude=exclude).files) == left


def test_what_is_excluded_is_not_named_as_skipped(folder) -> None:
    fill(folder, "song.mp3", "film.mp4")
    assert list_files(folder, exclude=["*.mp3"]).skipped == ("film.mp4",)


def test_a_folder_of_nothing_to_ingest_is_refused_with_the_reason(folder, tmp_path) -> None:
    fill(tmp_path, "music/song.mp3", "empty/.hidden")
    with pytest.raises(
        EmptyFolder, match=r"music has no file of a supported format, only song\.mp3; nothing was changed"
    ):
        list_files(tmp_path / "music")
    with pytest.raises(EmptyFolder, match=r"empty has no file; left out, hidden: \.hidden \(1\); nothing was changed"):
        list_files(tmp_path / "empty")
    with pytest.raises(FolderNotFound, match="is a file, not a folder"):
        list_files(folder / "leave.md")


def test_hidden_is_any_part_that_begins_with_a_full_stop() -> None:
    assert [is_hidden(name) for name in (".a", "a/.b/c", "a.b/c.d", "手册/.x")] == [True, True, False, True]


def test_a_pipe_is_skipped_and_a_dangling_link_is_left_to_be_reported(folder) -> None:
    os.mkfifo(folder / "pipe.txt")
    (folder / "dangling.txt").symlink_to(folder / "nowhere.txt")
    listing = list_files(folder)
    assert listing.skipped == ("pipe.txt",)
    assert "dangling.txt" in listing.files


def test_a_link_that_leads_to_itself_is_left_to_be_reported(folder) -> None:
    (folder / "loop.txt").symlink_to("loop.txt")
    (folder / "a.txt").symlink_to("b.txt")
    (folder / "b.txt").symlink_to("a.txt")
    (folder / "again").symlink_to(folder)
    assert list(list_files(folder).files) == ["a.txt", "b.txt", "guide.txt", "leave.md", "loop.txt", "travel.txt"]


def test_what_is_left_out_is_told_unless_it_was_asked_for(folder, tmp_path) -> None:
    fill(folder, ".git/a.txt", ".hidden.txt", ".cache/b.txt")
    (folder / "hosts.txt").symlink_to(tmp_path / "hosts")
    (folder / "elsewhere").symlink_to(tmp_path)
    assert list_files(folder, exclude=[".cache/"]).notes == (
        "left out, hidden: .git, .hidden.txt (2)",
        "left out, links out of the folder: elsewhere, hosts.txt (2)",
    )


@pytest.mark.parametrize("place", ["", "手册/store/"])
def test_a_store_in_the_folder_is_left_out_and_the_documents_beside_it_are_not(folder, place) -> None:
    fill(folder, *(f"{place}{name}" for name in ("chroma/chroma.sqlite3", "team.sqlite3", "team.sqlite3-wal")))
    fill(folder, *(f"{place}{name}" for name in ("team.lock", "team.lexical/meta.json", "chroma/x.txt", "b.txt")))
    fill(folder, "sqlite/chroma/c.txt", "sqlite/a.sqlite3")
    listing = list_files(folder)
    assert sorted(listing.files) == sorted(
        ["guide.txt", "leave.md", "travel.txt", f"{place}b.txt", "sqlite/chroma/c.txt"]
    )
    assert listing.skipped == ("sqlite/a.sqlite3",)
    assert listing.notes == (f"left out, a store's own files: {place.rstrip('/') or '.'} (1)",)
