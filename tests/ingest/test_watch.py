from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest import watch


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(watch, "QUIET_MILLISECONDS", 20)
    monkeypatch.setattr(watch, "ASKED_MILLISECONDS", 50)


def after(change, asked: Iterator[bool]) -> bool:
    """Whether a change is told within some seconds."""
    change()
    return any(next(asked) for _ in range(100))


def test_every_kind_of_change_is_told(folder: Path) -> None:
    (folder / "手册").mkdir()
    asked = watch.changes(folder, folder / "store")
    assert next(asked) is False
    assert after(lambda: (folder / "手册" / "新.txt").write_text("新的文件", encoding="utf-8"), asked)
    assert after(lambda: (folder / "leave.md").write_text("Changed.", encoding="utf-8"), asked)
    assert after(lambda: (folder / "手册" / "新.txt").rename(folder / "新.txt"), asked)
    assert after((folder / "新.txt").unlink, asked)
    asked.close()


def test_a_folder_that_goes_comes_back_or_is_exchanged_is_told_and_watched_on(folder: Path, tmp_path: Path) -> None:
    away, other = tmp_path / "away", tmp_path / "other"
    other.mkdir()
    asked = watch.changes(folder, tmp_path / "store")
    assert next(asked) is False
    assert after(lambda: folder.rename(away), asked)
    assert [next(asked) for _ in range(3)] == [False] * 3
    assert after(lambda: away.rename(folder), asked)
    assert after(lambda: (folder / "新.txt").write_text("新的文件", encoding="utf-8"), asked)

    def exchange() -> None:
        folder.rename(away)
        other.rename(folder)

    assert after(exchange, asked)
    assert after(lambda: (folder / "乙.txt").write_text("新的文件", encoding="utf-8"), asked)
    asked.close()


@pytest.mark.parametrize("name", [".groundwell", "store"])
def test_hidden_files_and_the_store_are_no_change(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    asked = watch.changes(folder, folder / "store")
    next(asked)
    (folder / name / "a.sqlite3").write_bytes(b"x")
    assert not any(next(asked) for _ in range(5))
    asked.close()
