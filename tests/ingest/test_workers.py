import pickle
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from ingest.prepare import FileEnd, Job, Recipe
from ingest.prepared import PreparedDocument
from ingest.workers import EmbedderNotShared, WorkerNotStarted, Workers
from llm.embeddings import Embedder
from tests.fakes import WordCountEmbedder
from tests.ingest.troublesome import Troublesome, Unloadable

JOB = Job(Recipe(), WordCountEmbedder(), max_tokens=32, memory_mib=1024)
TROUBLED = Job(Recipe(), Troublesome(), max_tokens=32, memory_mib=1024)


def write(folder: Path, **texts: str) -> list[tuple[str, Path]]:
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return [(f"{name}.txt", folder / f"{name}.txt") for name in texts]


def read(files: list[tuple[str, Path]], job: Job, *, seconds: float = 60, count: int = 1) -> dict[str, list]:
    """What was read, by file."""
    found: dict[str, list] = {file: [] for file, _ in files}
    with Workers(count, seconds) as workers, closing(workers.read(files, job)) as reads:
        for file, one in reads:
            found[file].append(one)
    return found


@pytest.mark.parametrize("count", [1, 3])
def test_workers_read_what_this_process_reads(folder, count) -> None:
    files = [(path.name, path) for path in sorted(folder.iterdir())]
    assert read(files, JOB, count=count) == {file: list(JOB.read(file, path)) for file, path in files}
    assert "员工每年有十二天年假。病假为七天。" in [chunk.text for chunk in read(files, JOB)["guide.txt"][0].chunks]


@pytest.mark.parametrize(
    ("text", "reason", "is_costly"),
    [
        ("it crashes", r"its reader crashed \(SIGSEGV\).*1024 MiB.*--exclude", True),
        ("it exits", r"its reader crashed \(exit status 3\)", True),
        ("it hangs", r"was not read after 0\.5 s: raise `file_seconds`", True),
        ("it takes memory", r"needs more than the 1024 MiB of memory.*`file_memory_mib`", True),
        ("it fails", r"its reader failed \(ValueError: an unexpected number: 七!{100,300}\): convert it", False),
        ("it is killed", r"its reader crashed \(SIGKILL\)", False),
    ],
)
def test_trouble_with_one_file_is_told_and_the_others_are_read(tmp_path, text, reason, is_costly) -> None:
    found = read(write(tmp_path, a="before", b=text, c="after"), TROUBLED, seconds=0.5)
    (end,) = found["b.txt"]
    assert isinstance(end, FileEnd)
    assert re.match(reason, end.reason)
    assert end.is_costly == is_costly
    assert [type(one) for one in found["a.txt"]] == [type(one) for one in found["c.txt"]] == [PreparedDocument, FileEnd]


def test_what_came_out_of_a_file_before_the_trouble_is_kept(tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / "档案.zip", "w") as archive:
        archive.writestr("a.txt", "一切正常")
        archive.writestr("b.txt", "it crashes")
    document, end = read([("档案.zip", tmp_path / "档案.zip")], TROUBLED)["档案.zip"]
    assert (document.source, document.file, document.chunks[0].text) == ("档案.zip/a.txt", "档案.zip", "一切正常")
    assert "crashed" in end.reason


def test_a_worker_that_cannot_start_ends_the_run(tmp_path, capfd) -> None:
    with pytest.raises(WorkerNotStarted, match="ended with status 1 before it read one"):
        read(write(tmp_path, a="text"), Job(Recipe(), Unloadable(), 32, 1024))
    assert "not in this process" in capfd.readouterr().err


def test_an_embedder_that_cannot_be_sent_is_refused_with_the_mend(tmp_path, monkeypatch) -> None:
    holder = Troublesome()
    holder.lock = threading.Lock()
    with pytest.raises(EmbedderNotShared, match=r"Troublesome cannot be sent .*__reduce__.*lock.*`workers = 0`"):
        read(write(tmp_path, a="text"), Job(Recipe(), holder, 32, 1024))
    monkeypatch.setattr(Troublesome, "__module__", "__main__")
    with pytest.raises(EmbedderNotShared, match="define its class in a module"):
        read(write(tmp_path, a="text"), TROUBLED)


def test_files_are_taken_as_they_are_needed_and_no_process_is_left(tmp_path) -> None:
    (file,) = write(tmp_path, a="text")
    taken = []

    def files() -> Iterator[tuple[str, Path]]:
        for number in range(1000):
            taken.append(number)
            yield file

    before = set(psutil.Process().children())
    with Workers(2, 60) as workers, closing(workers.read(files(), JOB)) as reads:
        next(reads)
        assert set(psutil.Process().children()) - before
    assert len(taken) <= 10
    assert not set(psutil.Process().children()) - before


def test_nothing_is_imported_from_the_current_folder(tmp_path, monkeypatch) -> None:
    (tmp_path / "resource.py").write_text("raise SystemExit(9)", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert len(read(write(tmp_path, a="text"), JOB)["a.txt"]) == 2


@pytest.mark.model
def test_a_worker_counts_a_models_tokens_without_loading_it(tmp_path) -> None:
    (tmp_path / "embedder").write_bytes(pickle.dumps(Embedder()))
    code = (
        f"import pathlib, pickle, sys; read = pickle.loads(pathlib.Path({str(tmp_path / 'embedder')!r}).read_bytes())\n"
        "import ingest.prepare, ingest.worker; print(read.offsets('annual leave'), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[(0, 6), (7, 12)] False\n"
