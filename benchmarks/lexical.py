"""Which lexical index: SQLite FTS5 (ours), tantivy and bm25s, on the same terms of the same synthetic chunks.

Run: `python -m benchmarks.lexical [CHUNKS ...]` (10000 and 100000; 1000000 takes half an hour). tantivy and bm25s are
not among the dependencies: `pip install tantivy bm25s numba`; one that is not there is left out. Bytes are those on
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

from ingest import lexical
from ingest.schema import migrate

WORDS = 50_000
"""Different words, the n-th 1/n as often as the first, as in any language."""
TERMS = (60, 240)
"""Words of a chunk, at least and at most."""
HAN = "年假病天员工公司规定申请审批部门经理财务报销差旅合同采购安全培训考勤薪资绩效设备维修数据系统用户密码网络服务"


class Index(Protocol):
    """What the three have in common."""

    def build(self, chunks: Iterable[list[str]]) -> None: ...
    def replace(self, chunks: dict[int, list[str]]) -> None: ...
    def search(self, terms: list[str], k: int) -> list[int]: ...


class Sqlite:
    """Ours, with the table that gives a row its id."""

    def __init__(self, folder: Path) -> None:
        self.connection = sqlite3.connect(folder / "lexical.sqlite3", isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = NORMAL")
        migrate(self.connection)

    def build(self, chunks: Iterable[list[str]]) -> None:
        self.connection.execute("BEGIN")
        for number, terms in enumerate(chunks):
            self._add(number, terms)
            if number % 1000 == 999:  # a batch of an ingest
                self.connection.execute("COMMIT")
                self.connection.execute("BEGIN")
        self.connection.execute("COMMIT")

    def replace(self, chunks: dict[int, list[str]]) -> None:
        self.connection.execute("BEGIN")
        for number, terms in chunks.items():
            lexical.remove(self.connection, number)
            self.connection.execute("DELETE FROM chunks WHERE rowid = ?", (number,))
            self._add(number, terms)
        self.connection.execute("COMMIT")

    def search(self, terms: list[str], k: int) -> list[int]:
        return [int(id_) for id_, _ in lexical.search(self.connection, " ".join(terms), k)]

    def _add(self, number: int, terms: list[str]) -> None:
        self.connection.execute("INSERT INTO chunks VALUES (?, ?, x'00', '')", (number, str(number)))
        self.connection.execute("INSERT INTO lexical (rowid, terms) VALUES (?, ?)", (number, " ".join(terms)))


class Tantivy:
    """Two threads, as the machine has cores; merges run as they come."""

    def __init__(self, folder: Path) -> None:
        import tantivy

        self.tantivy: Any = tantivy
        builder = tantivy.SchemaBuilder()
        builder.add_integer_field("number", stored=True, indexed=True)
        builder.add_text_field("terms", stored=False, tokenizer_name="whitespace")
        self.schema = builder.build()
        self.index = tantivy.Index(self.schema, path=str(folder))

    def build(self, chunks: Iterable[list[str]]) -> None:
        self._write(enumerate(chunks), drop=False)

    def replace(self, chunks: dict[int, list[str]]) -> None:
        self._write(chunks.items(), drop=True)

    def search(self, terms: list[str], k: int) -> list[int]:
        query = self.tantivy.Query
        any_of = [(self.tantivy.Occur.Should, query.term_query(self.schema, "terms", term)) for term in terms]
        searcher = self.index.searcher()
        return [searcher.doc(place)["number"][0] for _, place in searcher.search(query.boolean_query(any_of), k).hits]

    def _write(self, chunks: Iterable[tuple[int, list[str]]], *, drop: bool) -> None:
        writer = self.index.writer(100_000_000, num_threads=2)
        for number, terms in chunks:
            if drop:
                writer.delete_documents_by_term("number", number)
            writer.add_document(self.tantivy.Document(number=number, terms=" ".join(terms)))
        writer.commit()
        writer.wait_merging_threads()
        self.index.reload()


class Bm25s:
    """With numba; it has no update, so an update is a new index."""

    def __init__(self, folder: Path) -> None:
        import bm25s

        self.bm25s: Any = bm25s
        self.folder = folder

    def build(self, chunks: Iterable[list[str]]) -> None:
        self.chunks = list(chunks)
        self.index = self.bm25s.BM25(backend="numba")
        self.index.index(self.chunks, show_progress=False)
        self.index.save(self.folder)

    def replace(self, chunks: dict[int, list[str]]) -> None:
        self.build([chunks.get(number, terms) for number, terms in enumerate(self.chunks)])

    def search(self, terms: list[str], k: int) -> list[int]:
        known = [term for term in terms if term in self.index.vocab_dict]
        found, scores = self.index.retrieve([known], k=k, show_progress=False)
        return [int(number) for number, score in zip(found[0], scores[0], strict=True) if score > 0]


INDEXES: dict[str, Callable[[Path], Index]] = {"sqlite3": Sqlite, "tantivy": Tantivy, "bm25s": Bm25s}


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


def measure(name: str, chunks: list[list[str]], questions: list[list[str]]) -> str:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        index = INDEXES[name](Path(folder))
        build = seconds(lambda: index.build(chunks))
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        chance = random.Random(1)
        updates = []
        for turn in range(5):
            mark = spelled(10 * WORDS + turn)
            new = {chance.randrange(len(chunks)): [mark, *chance.choice(chunks)] for _ in range(10)}
            updates.append(seconds(lambda new=new: index.replace(new)))  # type: ignore[misc]
            assert set(index.search([mark], 20)) == set(new), name
        index.search(questions[0], 20)  # numba compiles
        times = sorted(1000 * seconds(lambda terms=terms: index.search(terms, 20)) for terms in questions)  # type: ignore[misc]
    update = 1000 * statistics.median(updates)
    p50, p95 = times[len(times) // 2], times[len(times) * 95 // 100]
    cells = (f"{len(chunks) / build:.0f}", f"{size / len(chunks):.0f}", f"{update:.1f}", f"{p50:.2f}", f"{p95:.2f}")
    return f"| {len(chunks)} | {name} | {' | '.join(cells)} |"


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
        made = list(texts(count))
        chunks: list[list[str]] = []
        cutting = seconds(lambda made=made, chunks=chunks: chunks.extend(map(lexical.terms, made)))  # type: ignore[misc]
        chance = random.Random(2)
        questions = [[*dict.fromkeys(chance.choices(chance.choice(chunks), k=6))] for _ in range(300)]
        for name in INDEXES:
            if importlib.util.find_spec(name):
                print(measure(name, chunks, questions), flush=True)
        print(f"\ncutting {count} chunks into terms: {count / cutting:.0f} chunks/s\n", flush=True)


if __name__ == "__main__":
    main([int(count) for count in sys.argv[1:]] or [10_000, 100_000])
