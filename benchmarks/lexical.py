"""Which lexical index: tantivy (ours), SQLite FTS5 and bm25s in segments, on the same terms of synthetic chunks.

Run: `python -m benchmarks.lexical [CHUNKS ...]` (10000 and 100000; 1000000 takes 20 minutes and 4 GB of disk). bm25s
is not among the dependencies: `pip install bm25s numba`; it is left out where it is not there. Bytes are those on
disk, an update replaces ten chunks and ends when they are found, a question has six terms and wants 20 chunks.
"""

import importlib.util
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from ingest.batches import in_batches
from ingest.journal import Journal
from ingest.terms import terms as cut

WORDS = 50_000
"""Different words, the n-th 1/n as often as the first, as in any language."""
TERMS = (60, 240)
"""Words of a chunk, at least and at most."""
HAN = "年假病天员工公司规定申请审批部门经理财务报销差旅合同采购安全培训考勤薪资绩效设备维修数据系统用户密码网络服务"
BATCH = 1000
"""Chunks of one transaction, a batch of an ingest."""
DIFFERENT = 100_000
"""Texts that are made and cut; of more chunks than these, each later one has the halves of two of them."""
SEGMENT = 100_000
"""Chunks of a bm25s segment: its build holds all of their terms in memory."""

Chunk = tuple[int, list[str]]


class Index(Protocol):
    """What the three have in common."""

    def build(self, chunks: Iterable[Chunk]) -> None: ...
    def replace(self, chunks: list[Chunk]) -> None: ...
    def search(self, terms: list[str], k: int) -> list[int]: ...


class Ours:
    """tantivy with the journal beside it, from its `chunks` to a search; only the cutting into terms is not timed."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder / "journal.sqlite3")
        self.journal.switch("benchmark", empty=True)
        self.connection = sqlite3.connect(folder / "journal.sqlite3", isolation_level=None)

    def build(self, chunks: Iterable[Chunk]) -> None:
        for batch in in_batches(chunks, BATCH):
            self.replace(batch)

    def replace(self, chunks: list[Chunk]) -> None:
        ids = [(id_of(number),) for number, _ in chunks]
        rows = [(id_of(number), " ".join(terms)) for number, terms in chunks]
        self.connection.execute("BEGIN")
        self.connection.executemany("DELETE FROM chunks WHERE id = ?", ids)
        self.connection.executemany("INSERT INTO chunks (id, digest, source) VALUES (?, x'00', '')", ids)
        self.connection.executemany("INSERT INTO unindexed (id, terms) VALUES (?, ?)", rows)
        self.connection.execute("COMMIT")
        assert self.journal.index()

    def search(self, terms: list[str], k: int) -> list[int]:
        return [int(id_, 16) for id_, _ in self.journal.search(" ".join(terms), k)]


def id_of(number: int) -> str:
    """As long as a chunk's."""
    return f"{number:032x}"


class Sqlite:
    """Sorted by FTS5 itself, before the ids are looked up."""

    def __init__(self, folder: Path) -> None:
        self.connection = sqlite3.connect(folder / "lexical.sqlite3", isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = NORMAL")
        self.connection.execute("CREATE TABLE chunks (rowid INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL)")
        tokens = "ascii tokenchars '_.-+#'"
        self.connection.execute(f'CREATE VIRTUAL TABLE lexical USING fts5(terms, tokenize="{tokens}")')

    def build(self, chunks: Iterable[Chunk]) -> None:
        for batch in in_batches(chunks, BATCH):
            self.connection.execute("BEGIN")
            self._add(batch)
            self.connection.execute("COMMIT")

    def replace(self, chunks: list[Chunk]) -> None:
        self.connection.execute("BEGIN")
        for table in ("lexical", "chunks"):
            self.connection.executemany(f"DELETE FROM {table} WHERE rowid = ?", [(number,) for number, _ in chunks])
        self._add(chunks)
        self.connection.execute("COMMIT")

    def search(self, terms: list[str], k: int) -> list[int]:
        best = "SELECT rowid, rank AS score FROM lexical WHERE lexical MATCH ? ORDER BY rank LIMIT ?"
        query = f"SELECT id, -score FROM ({best}) JOIN chunks USING (rowid) ORDER BY score, id"
        wanted = " OR ".join(f'"{term}"' for term in terms)
        return [int(id_, 16) for id_, _ in self.connection.execute(query, (wanted, k)).fetchall()]

    def _add(self, chunks: list[Chunk]) -> None:
        self.connection.executemany(
            "INSERT INTO chunks VALUES (?, ?)", [(number, id_of(number)) for number, _ in chunks]
        )
        rows = [(number, " ".join(terms)) for number, terms in chunks]
        self.connection.executemany("INSERT INTO lexical (rowid, terms) VALUES (?, ?)", rows)


class Bm25s:
    """With numba. It has no update: what is new is a segment of its own, which weighs terms by its own counts, and what
    is old is masked; a segment that is merged is made anew."""

    def __init__(self, folder: Path) -> None:
        import bm25s

        self.bm25s: Any = bm25s
        self.folder = folder
        self.segments: list[tuple[list[int], Any, Any]] = []

    def build(self, chunks: Iterable[Chunk]) -> None:
        import numpy

        for some in in_batches(chunks, SEGMENT):
            index = self.bm25s.BM25(backend="numba")
            index.index([list(map(sys.intern, terms)) for _, terms in some], show_progress=False)
            index.save(self.folder / str(len(self.segments)))
            self.segments.append(([number for number, _ in some], index, numpy.ones(len(some), dtype="float32")))

    def replace(self, chunks: list[Chunk]) -> None:
        gone = {number for number, _ in chunks}
        for numbers, _, mask in self.segments:
            mask[[place for place, number in enumerate(numbers) if number in gone]] = 0
        self.build(chunks)

    def search(self, terms: list[str], k: int) -> list[int]:
        best: list[tuple[float, int]] = []
        for numbers, index, mask in self.segments:
            if known := [term for term in terms if term in index.vocab_dict]:
                size = min(k, len(numbers))
                found, scores = index.retrieve([known], k=size, show_progress=False, weight_mask=mask)
                best += [
                    (-score, numbers[place]) for place, score in zip(found[0], scores[0], strict=True) if score > 0
                ]
        return [number for _, number in sorted(best)[:k]]


INDEXES: dict[str, Callable[[Path], Index]] = {"tantivy": Ours, "sqlite3": Sqlite, "bm25s": Bm25s}


def texts(count: int, seed: int = 0) -> Iterator[str]:
    """Chunks of a made-up language with made-up frequencies, every fifth one Chinese."""
    chance = random.Random(seed)
    for number in range(count):
        length = chance.randint(*TERMS)
        if number % 5 == 0:
            yield "".join(chance.choices(HAN, k=length))
        else:
            yield " ".join(word(chance) for _ in range(length))


def word(chance: random.Random) -> str:
    """One word, drawn by Zipf's law."""
    return spelled(int(WORDS ** chance.random()))


def spelled(number: int) -> str:
    """A number in letters, so that `terms` leaves it whole."""
    return "w" + str(number).translate(str.maketrans("0123456789", "abcdefghij"))


class Chunks:
    """The terms of synthetic chunks in a file, one chunk a line, so that a million of them take little memory."""

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count = path, count
        made, lines = list(texts(min(count, DIFFERENT))), []
        self.cut_per_second = len(made) / seconds(lambda: lines.extend(" ".join(cut(text)) for text in made))
        chance = random.Random(2)
        self.sample = [line.split() for line in chance.sample(lines, 1000)]
        with path.open("w", encoding="utf-8") as file:
            for number in range(count):
                line = lines[number] if number < len(lines) else mixed(chance.choice(lines), chance.choice(lines))
                file.write(line + "\n")

    def __iter__(self) -> Iterator[Chunk]:
        with self.path.open(encoding="utf-8") as file:
            for number, line in enumerate(file):
                yield number, line.split()


def mixed(one: str, other: str) -> str:
    """The first half of one and the second half of the other."""
    return one[: one.find(" ", len(one) // 2)] + other[other.find(" ", len(other) // 2) :]


def measure(name: str, chunks: Chunks, questions: list[list[str]]) -> str:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        index = INDEXES[name](Path(folder))
        build = seconds(lambda: index.build(chunks))
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        update = 1000 * statistics.median(updates(index, chunks, name))
        index.search(questions[0], 20)  # numba compiles
        asked = [ask(index, terms) for terms in questions]
    p50, p95 = ("/".join(f"{at(share, times):.2f}" for times in zip(*asked, strict=True)) for share in (0.5, 0.95))
    cells = f"{chunks.count / build:.0f}", f"{size / chunks.count:.0f}", f"{update:.1f}", p50, p95
    return f"| {chunks.count} | {name} | {' | '.join(cells)} |"


def ask(index: Index, terms: list[str]) -> tuple[float, float]:
    """How many milliseconds a question takes, and how many of these on a CPU: that number stands on a busy machine."""
    began, began_cpu = time.perf_counter(), time.process_time()
    index.search(terms, 20)
    return 1000 * (time.perf_counter() - began), 1000 * (time.process_time() - began_cpu)


def at(share: float, times: tuple[float, ...]) -> float:
    """The time that so many questions do not exceed."""
    return sorted(times)[int(len(times) * share)]


def updates(index: Index, chunks: Chunks, name: str) -> Iterator[float]:
    """How long each of five updates takes until what is new is found."""
    chance = random.Random(1)
    for turn in range(5):
        mark = spelled(10 * WORDS + turn)
        new = {chance.randrange(chunks.count): [mark, *chance.choice(chunks.sample)] for _ in range(10)}

        def until_found(new: dict[int, list[str]] = new, mark: str = mark) -> None:
            index.replace(list(new.items()))
            assert set(index.search([mark], 20)) == set(new), name

        yield seconds(until_found)


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main(counts: list[int]) -> None:
    """Print one table."""
    print("| chunks | index | chunks/s built | bytes/chunk | update of ten, ms | p50, ms/CPU | p95, ms/CPU |")
    print("|---|---|---|---|---|---|---|")
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            chunks = Chunks(Path(folder) / "chunks.txt", count)
            chance = random.Random(2)
            number = 300 if count < 1_000_000 else 100
            questions = [[*dict.fromkeys(chance.choices(chance.choice(chunks.sample), k=6))] for _ in range(number)]
            for name in INDEXES:
                if importlib.util.find_spec(name):
                    print(measure(name, chunks, questions), flush=True)
        print(f"\ncutting chunks into terms: {chunks.cut_per_second:.0f} a second\n", flush=True)


if __name__ == "__main__":
    main([int(count) for count in sys.argv[1:]] or [10_000, 100_000])
