"""Which lexical index: tantivy, SQLite FTS5 and bm25s in segments, on the same terms of the same synthetic chunks.

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
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from ingest import lexical

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


class Sqlite:
    """Sorted by FTS5 itself, before the ids are looked up: a third of the time of a join that is sorted."""

    def __init__(self, folder: Path) -> None:
        self.connection = sqlite3.connect(folder / "lexical.sqlite3", isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = NORMAL")
        self.connection.execute("CREATE TABLE chunks (rowid INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL)")
        tokens = "ascii tokenchars '_.-+#'"
        self.connection.execute(f'CREATE VIRTUAL TABLE lexical USING fts5(terms, tokenize="{tokens}")')

    def build(self, chunks: Iterable[Chunk]) -> None:
        rest = iter(chunks)
        while batch := list(islice(rest, BATCH)):
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
        return [int(id_) for id_, _ in self.connection.execute(query, (wanted, k)).fetchall()]

    def _add(self, chunks: list[Chunk]) -> None:
        self.connection.executemany("INSERT INTO chunks VALUES (?, ?)", [(number, str(number)) for number, _ in chunks])
        rows = [(number, " ".join(terms)) for number, terms in chunks]
        self.connection.executemany("INSERT INTO lexical (rowid, terms) VALUES (?, ?)", rows)


class Tantivy:
    """Bare, without the journal: one thread, a commit for each batch."""

    def __init__(self, folder: Path) -> None:
        import tantivy

        self.tantivy: Any = tantivy
        builder = tantivy.SchemaBuilder()
        builder.add_text_field("id", stored=True, tokenizer_name="raw", index_option="basic")
        builder.add_text_field("terms", stored=False, tokenizer_name="whitespace", index_option="freq")
        self.schema = builder.build()
        self.index = tantivy.Index(self.schema, path=str(folder))

    def build(self, chunks: Iterable[Chunk]) -> None:
        self._write(chunks, drop=False)

    def replace(self, chunks: list[Chunk]) -> None:
        self._write(chunks, drop=True)

    def search(self, terms: list[str], k: int) -> list[int]:
        query = self.tantivy.Query
        any_of = [(self.tantivy.Occur.Should, query.term_query(self.schema, "terms", term)) for term in terms]
        searcher = self.index.searcher()
        return [int(searcher.doc(at)["id"][0]) for _, at in searcher.search(query.boolean_query(any_of), k).hits]

    def _write(self, chunks: Iterable[Chunk], *, drop: bool) -> None:
        writer = self.index.writer(50_000_000, num_threads=1)
        rest = iter(chunks)
        while batch := list(islice(rest, BATCH)):
            for number, terms in batch:
                if drop:
                    writer.delete_documents_by_term("id", str(number))
                writer.add_document(self.tantivy.Document(id=str(number), terms=" ".join(terms)))
            writer.commit()
        writer.wait_merging_threads()
        self.index.reload()


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

        rest = iter(chunks)
        while some := list(islice(rest, SEGMENT)):
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


INDEXES: dict[str, Callable[[Path], Index]] = {"tantivy": Tantivy, "sqlite3": Sqlite, "bm25s": Bm25s}


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
        self.cut_per_second = len(made) / seconds(lambda: lines.extend(" ".join(lexical.terms(text)) for text in made))
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
        times = sorted(1000 * seconds(lambda terms=terms: index.search(terms, 20)) for terms in questions)  # type: ignore[misc]
    p50, p95 = times[len(times) // 2], times[len(times) * 95 // 100]
    cells = f"{chunks.count / build:.0f}", f"{size / chunks.count:.0f}", f"{update:.1f}", f"{p50:.2f}", f"{p95:.2f}"
    return f"| {chunks.count} | {name} | {' | '.join(cells)} |"


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
    print("| chunks | index | chunks/s built | bytes/chunk | update of ten, ms | p50, ms | p95, ms |")
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
