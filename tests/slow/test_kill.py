"""An ingest that is killed at any moment, over a folder that changes; GROUNDWELL_KILL_ROUNDS and _SEED choose more."""

import os
import random
import shutil
import subprocess
import sys
import time
import zipfile
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from ingest.index import LIST_OF_IDS
from ingest.store import KnowledgeBase
from tests.fakes import WordCountEmbedder
from tests.slow.conftest import ROOT, environment
from tests.slow.killed import everything, not_found

ROUNDS = int(os.environ.get("GROUNDWELL_KILL_ROUNDS", "25"))
SEED = int(os.environ.get("GROUNDWELL_KILL_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
SECONDS = 30 * ROUNDS + 60


def command(*arguments: object) -> "subprocess.Popen[str]":
    """Start a process of tests/slow/killed.py and wait until it begins to ingest."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.slow.killed", *map(str, arguments)],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "begun\n"
    return process


class ChangingFolder:
    """Text files and archives, in English and Chinese, some with the same text in several places."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.texts = [self.paragraph() for _ in range(5)]
        folder.mkdir()
        for _ in range(20):
            self.write()

    def change(self) -> None:
        for _ in range(self.chance.randrange(3, 12)):
            self.chance.choice([self.write, self.write, self.rewrite, self.rewrite, self.move, self.remove])()

    def write(self, path: Path | None = None) -> None:
        suffix = self.chance.choice([".md", ".txt", ".zip"])
        path = path or self.folder / f"{self.chance.choice(['文件', 'file'])} {self.chance.randrange(10**6)}{suffix}"
        if path.suffix == ".zip":
            with zipfile.ZipFile(path, "w") as archive:
                for number in range(self.chance.randrange(1, 5)):
                    archive.writestr(f"成员 {number}.txt", self.text())
        else:
            path.write_text(self.text(), encoding="utf-8")

    def rewrite(self) -> None:
        self.write(self.any())

    def move(self) -> None:
        path = self.any()
        path.rename(path.with_stem(f"moved {self.chance.randrange(10**6)}"))

    def remove(self) -> None:
        if len(list(self.folder.iterdir())) > 10:
            self.any().unlink()

    def any(self) -> Path:
        return self.chance.choice(sorted(self.folder.iterdir()))

    def text(self) -> str:
        paragraphs = [self.paragraph() for _ in range(self.chance.randrange(1, 8))]
        return "\n\n".join([*paragraphs, *self.chance.sample(self.texts, self.chance.randrange(2))])

    def paragraph(self) -> str:
        words = [f"word{self.chance.randrange(10**5)}" for _ in range(8)]
        chinese = "".join(chr(self.chance.randrange(0x4E00, 0x9FA5)) for _ in range(10))
        return f"{' '.join(words)} {chinese}。"


@pytest.mark.timeout(SECONDS)
def test_after_any_kill_the_next_run_makes_the_knowledge_base_whole(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    folder, store = ChangingFolder(tmp_path / "documents", chance), tmp_path / "store"
    longest = 1.5  # so that kills come at every moment of a run, however fast the machine is now
    for number in range(ROUNDS):
        for _ in range(chance.choice([1, 1, 1, 2])):
            folder.change()
            process, begun = command("ingest", store, folder.folder), time.monotonic()
            time.sleep(chance.uniform(0, longest))
            process.kill()
            output, _ = process.communicate()
            longest = min(longest, time.monotonic() - begun) if output == "done\n" else longest * 1.1
        process = command("compare", store, folder.folder, tmp_path / "whole")
        output, _ = process.communicate()
        assert process.returncode == 0
        assert output.splitlines()[1:-1] == [], f"round {number} of seed {SEED} (GROUNDWELL_KILL_SEED)"
        shutil.rmtree(tmp_path / "whole")


def test_a_writer_that_is_killed_while_it_writes_the_index_leaves_one_that_finds_all(tmp_path: Path) -> None:
    store = tmp_path / "store"
    kills = 0
    for _ in range(10):
        process = command("grow", store, tmp_path)
        while process.poll() is None:
            begun, ended = written(store, "data_level0.bin"), written(store, LIST_OF_IDS)
            if begun and ended and begun > ended:
                process.kill()
                kills += 1
        process.communicate()
        with closing(KnowledgeBase.open(store, "团队", WordCountEmbedder())) as knowledge_base:
            there = everything(knowledge_base)
            assert not_found(knowledge_base, {id_: there[id_][0] for id_ in knowledge_base.journal.ids()}) == []
    assert kills


def written(store: Path, name: str) -> int:
    """When a file of the index was written last, in nanoseconds; 0 when it is not there."""
    return max((path.stat().st_mtime_ns for path in store.glob(f"chroma/*/{name}")), default=0)


def test_a_worker_ends_with_its_parent_though_its_file_never_does(tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "a.txt").write_text("it hangs", encoding="utf-8")
    process = command("hang", tmp_path / "store", tmp_path / "documents")
    while not (workers := psutil.Process(process.pid).children()):
        assert process.poll() is None
    process.kill()
    process.communicate()
    assert psutil.wait_procs(workers, timeout=10)[1] == []
