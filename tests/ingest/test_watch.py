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
    asked = watch.changes(folder)
    assert next(asked) is False
    assert after(lambda: (folder / "手册" / "新.txt").write_text("新的文件", encoding="utf-8"), asked)
    assert after(lambda: (folder / "leave.md").write_text("Changed.", encoding="utf-8"), asked)
    assert after(lambda: (folder / "手册" / "新.txt").rename(folder / "新.txt"), asked)
    assert after((folder / "新.txt").unlink, asked)
    asked.close()


def test_hidden_files_are_no_change(folder: Path) -> None:
    (folder / ".groundwell").mkdir()
    asked = watch.changes(folder)
    next(asked)
    (folder / ".groundwell" / "store.sqlite3").write_bytes(b"x")
    assert not any(next(asked) for _ in range(5))
    asked.close()


def test_ctrl_c_ends_the_watch(folder: Path, monkeypatch) -> None:
    def interrupted(*_: object, **__: object) -> Iterator[set]:
        yield set()
        raise KeyboardInterrupt

    monkeypatch.setattr("watchfiles.watch", interrupted)
    assert list(watch.changes(folder)) == [False]
