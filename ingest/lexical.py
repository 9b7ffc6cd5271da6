"""The lexical index: a tantivy index of terms in a folder beside the journal, which says how far it has come.

tantivy's files never change once they are written; `meta.json` names those that count, and a commit replaces it. An
index that is made anew gets a folder of its own, so that readers keep the old one until the journal names the new one.
"""

import json
import mmap
import secrets
import shutil
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ingest.forks import Forks
from ingest.terms import VERSION as TERMS
from ingest.terms import terms

if TYPE_CHECKING:
    import numpy

VERSION = f"{TERMS}.1"
"""Of the terms, and of the fields: `key` is a column, which is read in a hundredth of the time of the ids."""

HEAP = 50_000_000
"""Bytes that a writer takes before it writes a segment by itself; tantivy wants 15 million at least for a thread."""
MAY_BE_GONE = 1000
"""Chunks that may be in the files of even a small index after they are gone."""
SCORE_DIGITS = 3
"""Of a BM25 score. tantivy adds 32-bit numbers, in an order that differs from segment to segment."""


class DamagedIndex(Exception):
    """The lexical index is missing, cannot be read, is of other terms, or lacks what the journal says it has."""


Likely = Callable[["numpy.ndarray"], "numpy.ndarray"]


class Looked(NamedTuple):
    """What a look at the best chunks has found: id and BM25 score, best first, and whether none is behind them."""

    found: list[tuple[str, float]]
    is_all: bool


@dataclass(frozen=True)
class Mark:
    """What the journal keeps: the version of the terms, the index's folder, and the number of its last commit."""

    version: str
    name: str
    commit: int

    def __str__(self) -> str:
        return f"{self.version} {self.name} {self.commit}"

    @classmethod
    def read(cls, value: str | None) -> "Mark":
        """From its text. Raises DamagedIndex when there is none, or one of other terms."""
        match (value or "").split():
            case [version, name, commit] if version == VERSION:
                return cls(version, name, int(commit))
        raise DamagedIndex(f"there is no lexical index of version {VERSION}")


class LexicalIndex:
    """The index of one knowledge base. Any thread may search; one process writes at a time, under its writer's lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opening = threading.Lock()
        self._opened: _Opened | None = None

    def close(self) -> None:
        """Let go of the files."""
        with self._opening:
            self._opened = None

    def make(self) -> Mark:
        """An empty index, which counts as soon as the journal keeps its mark."""
        name = secrets.token_hex(8)
        (self.folder / name).mkdir(parents=True)
        with _damage_named(self.folder / name), _forks.kept_off():
            _tantivy().Index(_schema(), path=str(self.folder / name), reuse=False)
        return Mark(VERSION, name, 0)

    def write(self, mark: Mark, gone: Iterable[str], new: Collection[tuple[str, str]]) -> Mark:
        """Take the chunks `gone` out and put `new` in, ids and their terms with blanks between, in one commit.

        To do it again changes nothing as long as `gone` has the ids of `new`.
        """
        folder = self.folder / mark.name
        with _damage_named(folder), _forks.kept_off():
            tantivy = _tantivy()
            # Our own lock keeps other writers off; a process that was forked meanwhile may still hold this one.
            (folder / ".tantivy-writer.lock").unlink(missing_ok=True)
            writer = tantivy.Index.open(str(folder)).writer(HEAP, num_threads=1)
            try:
                for id_ in gone:
                    writer.delete_documents_by_term("id", id_)
                for id_, of_chunk in new:
                    writer.add_document(tantivy.Document(id=id_, terms=of_chunk, key=key(id_)))
                commit = writer.commit()
            finally:
                writer.wait_merging_threads()  # ends all threads of the writer
        return replace(mark, commit=commit)

    def search(self, mark: Mark, query: str, k: int, among: Collection[str] | None = None) -> list[tuple[str, float]]:
        """The `k` best chunks, of `among` or of all, that hold any of the query's terms: id and BM25 score, best first.

        Equal scores come by id. A query without a term, such as punctuation, finds nothing. Raises DamagedIndex.
        """
        return self.look(mark, query, k, among).found

    def look(
        self, mark: Mark, query: str, depth: int, among: Collection[str] | None = None, likely: Likely | None = None
    ) -> Looked:
        """As `search`, but of the `depth` best only those whose keys are `likely`: an array of bool for one of keys."""
        wanted = dict.fromkeys(terms(query))
        if not wanted or depth < 1:
            return Looked([], True)
        with _damage_named(self.folder / mark.name):
            found, is_all = self._at(mark).search(wanted, depth, among, likely)
        rounded = ((id_, round(score, SCORE_DIGITS)) for id_, score in found)
        return Looked(sorted(rounded, key=lambda hit: (-hit[1], hit[0])), is_all)

    def scores(self, mark: Mark, query: str, ids: Collection[str]) -> dict[str, float]:
        """The BM25 scores of those of `ids` that hold any of the query's terms. Raises DamagedIndex."""
        wanted = dict.fromkeys(terms(query))
        if not wanted or not ids:
            return {}
        with _damage_named(self.folder / mark.name):
            found = self._at(mark).search(wanted, len(ids), among=ids).found
        return {id_: round(score, SCORE_DIGITS) for id_, score in found}

    def weights(self, mark: Mark, query: str) -> dict[str, float]:
        """The inverse document frequency of each of the query's terms, as BM25 has it. Raises DamagedIndex."""
        with _damage_named(self.folder / mark.name):
            return self._at(mark).weights(dict.fromkeys(terms(query)))

    def check(self, mark: Mark, chunks: int) -> None:
        """Raises DamagedIndex unless all files are there as they were written, and hold so many chunks, and not many
        more that are gone: they count in BM25's frequencies, and tantivy drops them only when it merges their segment.
        """
        self.close()  # open files hide what has become of those on disk
        with _damage_named(self.folder / mark.name):
            opened = _Opened(self.folder / mark.name, mark.commit)
            opened.check_files()
            if len(opened) != chunks:
                raise DamagedIndex(f"the lexical index has {len(opened)} chunks, not {chunks}")
            if opened.gone > chunks + MAY_BE_GONE:
                raise DamagedIndex(f"the lexical index holds {opened.gone} chunks that are gone, beside {chunks}")

    def sweep(self, mark: Mark) -> None:
        """Drop the indexes that no longer count; who reads one still has its files open."""
        with _damage_named(self.folder):
            for folder in self.folder.iterdir():
                if folder.name != mark.name:
                    shutil.rmtree(folder, ignore_errors=True)

    def _at(self, mark: Mark) -> "_Opened":
        with self._opening:
            if self._opened is None or self._opened.folder.name != mark.name:
                self._opened = _Opened(self.folder / mark.name, mark.commit)
            self._opened.see(mark.commit)
            return self._opened


class _Opened:
    """An index as it was at a commit, to be searched."""

    def __init__(self, folder: Path, commit: int) -> None:
        self.folder, self._seen = folder, -1
        with _forks.kept_off():
            self._index = _tantivy().Index.open(str(folder))
            self._index.config_reader("manual", 0)
        self.see(commit)

    def __len__(self) -> int:
        return self._index.searcher().num_docs

    @property
    def gone(self) -> int:
        """Chunks that are marked as gone and still in the files."""
        return sum((segment["deletes"] or {}).get("num_deleted_docs", 0) for segment in self._meta()["segments"])

    def see(self, commit: int) -> None:
        """Be at least at that commit."""
        if commit > self._seen:
            has = self._meta()["opstamp"]
            if has < commit:
                raise DamagedIndex(f"{self.folder} is at commit {has}, not {commit}")
            with _forks.kept_off():
                self._index.reload()
            self._seen = commit

    def search(
        self, wanted: Iterable[str], depth: int, among: Collection[str] | None = None, likely: Likely | None = None
    ) -> Looked:
        import numpy

        tantivy, searcher, schema = _tantivy(), self._index.searcher(), self._index.schema
        room = max(1, min(depth, searcher.num_docs))  # it is taken, however few there are
        any_of = [(tantivy.Occur.Should, tantivy.Query.term_query(schema, "terms", term, "freq")) for term in wanted]
        query = tantivy.Query.boolean_query(any_of)
        if among is not None:
            those = tantivy.Query.const_score_query(tantivy.Query.term_set_query(schema, "id", list(among)), 0.0)
            query = tantivy.Query.boolean_query([(tantivy.Occur.Must, those), (tantivy.Occur.Must, query)])
        # Who counts the hits reads them all; who does not passes over those that cannot be among the best.
        hits = searcher.search(query, room, count=False).hits
        is_all = len(hits) < depth
        if likely and hits:
            keys = searcher.fast_field_values("key", [address for _, address in hits])
            hits = [hits[at] for at in numpy.flatnonzero(likely(numpy.asarray(keys, dtype="int64")))]
        return Looked([(searcher.doc(address)["id"][0], score) for score, address in hits], is_all)

    def weights(self, wanted: Iterable[str]) -> dict[str, float]:
        searcher = self._index.searcher()
        found = {term: searcher.doc_freq("terms", term) for term in wanted}
        return {term: log(1 + (max(searcher.num_docs - has, 0) + 0.5) / (has + 0.5)) for term, has in found.items()}

    def check_files(self) -> None:
        """Raises DamagedIndex when a file is not as it was written."""
        for segment in self._meta()["segments"]:
            deletes = f".{(segment['deletes'] or {}).get('opstamp')}.del"
            for path in self.folder.glob(f"{segment['segment_id'].replace('-', '')}.*"):
                if path.suffix != ".del" or path.name.endswith(deletes):  # a killed commit may have left another
                    _check_file(path)

    def _meta(self) -> Any:
        return json.loads((self.folder / "meta.json").read_bytes())


def key(id_: str) -> int:
    """What tells most ids apart, of 32 bits."""
    return zlib.crc32(id_.encode())


def _check_file(path: Path) -> None:
    """Compare a file with the checksum at its end: JSON, the length of that, and a magic number, four bytes each."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        with memoryview(content) as whole, whole[:start] as body:
            checksum = zlib.crc32(body)
        if checksum != json.loads(content[start:-8])["crc"]:
            raise DamagedIndex(f"{path} is not as it was written")


@contextmanager
def _damage_named(folder: Path) -> Iterator[None]:
    """Whatever tantivy fails with becomes a DamagedIndex."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        raise DamagedIndex(f"the lexical index {folder} cannot be used: {error}") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust: no module has that type
            raise
        raise DamagedIndex(f"the lexical index {folder} is broken: {error}") from error


_forks = Forks()


@cache
def _tantivy() -> Any:
    import tantivy

    return tantivy


@cache
def _schema() -> Any:
    builder = _tantivy().SchemaBuilder()
    builder.add_text_field("id", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("terms", tokenizer_name="whitespace", index_option="freq")
    builder.add_integer_field("key", fast=True)
    return builder.build()
