"""The engine's private folder, and the log that lies in it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm.starting import run_folder
from llm.starting.engine_log import KEPT, PIPE, EngineLog
from llm.starting.run_folder import LONGEST, RunFolder, short_place, sweep

MAKE = """
import sys
from pathlib import Path
from llm.starting.run_folder import _made_in
print(_made_in(Path(sys.argv[1]))[0])
"""
OTHERS = ["groundwell-data", "groundwell-run-", "groundwell-run-abcdefghi", "groundwell-run-ABCDEFGH"]


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, where any path is short enough."""
    place = tmp_path_factory.mktemp("p")
    monkeypatch.setattr(run_folder, "LONGEST", 1000)
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


def left_behind(place: Path) -> Path:
    """A run folder whose process has died."""
    done = subprocess.run([sys.executable, "-c", MAKE, str(place)], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def test_the_folder_is_private_and_goes_with_all_that_is_in_it(place: Path) -> None:
    folder = RunFolder()
    assert folder.path.parent == place
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "within").mkdir()
    (folder.path / "within" / "数据").write_text("x")
    folder.remove()
    folder.remove()
    assert list(place.iterdir()) == []


def test_folders_of_dead_processes_are_swept_and_those_of_living_ones_stay(place: Path) -> None:
    dead, living = left_behind(place), RunFolder()
    assert dead.is_dir() is False  # the new one has swept it
    dead = left_behind(place)
    sweep(place)
    assert not dead.exists()
    assert living.path.is_dir()
    living.remove()


def test_shared_memory_of_killed_workers_goes_with_the_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = place / "shm"
    memory.mkdir()
    monkeypatch.setattr(run_folder, "SHARED_MEMORY", memory)
    for name in ("vllm_dist_abc-tp:0-[0-1-2]-cpushm_0", "vllm_dist_other-tp:0-[0-1-2]-cpushm_0"):
        (memory / name).touch()
    dead = left_behind(place)
    (dead / "vllm_dist_abc").touch()
    sweep(place)
    assert [path.name for path in memory.iterdir()] == ["vllm_dist_other-tp:0-[0-1-2]-cpushm_0"]


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_else_is_ever_swept(place: Path, name: str) -> None:
    (place / name).mkdir()
    sweep(place)
    assert (place / name).is_dir()


def test_a_link_or_file_of_such_a_name_is_not_followed(place: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    (place / "groundwell-run-aaaaaaaa").symlink_to(tmp_path)
    (place / "groundwell-run-bbbbbbbb").touch()
    sweep(place)
    assert (tmp_path / "precious").exists()
    assert len(list(place.iterdir())) == 2


@pytest.mark.parametrize("name", ["x" * LONGEST, "临时" * (LONGEST // 6)])
def test_a_place_that_is_too_long_for_a_socket_is_replaced(tmp_path: Path, name: str) -> None:
    long = tmp_path / name
    long.mkdir()
    assert len(os.fsencode(short_place(long))) <= LONGEST
    assert short_place(long) != long
    assert short_place(Path("/tmp")) == Path("/tmp")


def test_sockets_can_be_made_in_the_longest_place() -> None:
    path = "/" * LONGEST + "/" + "groundwell-run-abcdefgh" + "/" + "01234567-89ab-cdef-0123-456789abcdef"
    assert len(path) == 107


def test_without_any_short_place_the_message_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "SHORT", ())
    with pytest.raises(OSError, match=rf"set TMPDIR to a folder of at most {LONGEST} bytes"):
        short_place(tmp_path / "missing")


# The log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EngineLog]:
    log = EngineLog(tmp_path, aloud=False)
    yield log
    log.close()


def write(folder: Path, text: bytes) -> None:
    """As another process does."""
    with (folder / PIPE).open("wb") as pipe:
        pipe.write(text)


def test_what_is_written_at_the_start_is_kept_and_not_shown(
    log: EngineLog, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "eins\n二 two\n".encode() + b"\xff half\nlast")
    log.close()
    log.close()
    assert log.lines == ["eins", "二 two", "\ufffd half", "last"]
    assert capfd.readouterr().err == ""


def test_what_is_written_while_the_engine_runs_is_shown(
    log: EngineLog, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, b"loading\n")
    deadline = time.monotonic() + 10
    while not log.lines:
        assert time.monotonic() < deadline
    log.engine_runs()
    write(tmp_path, b"a fault\n")
    log.close()
    assert capfd.readouterr().err == "a fault\n"
    assert log.lines == ["a fault"]


def test_it_is_shown_from_the_beginning_when_asked_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = EngineLog(tmp_path, aloud=True)
    write(tmp_path, b"loading\n")
    log.close()
    assert capfd.readouterr().err == "loading\n"


def test_only_the_end_of_a_long_log_is_kept(log: EngineLog, tmp_path: Path) -> None:
    write(tmp_path, b"".join(b"%d\n" % number for number in range(50_000)))
    log.close()
    assert log.lines == [str(number) for number in range(50_000 - KEPT, 50_000)]
