"""The SQLite file beside a Chroma collection: the documents, their chunks, and what the lexical index lacks."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from ingest import rows
from ingest.about import About
from ingest.batches import in_batches
from ingest.collection import lexical_path
from ingest.lexical import DamagedIndex, LexicalIndex, Likely, Mark
from ingest.rows import Failure, StoredChunk, StoredDocument
from ingest.terms import terms

INDEXED = 10_000
"""Chunks that the lexical index takes in one commit at most; their terms take about 15 MB of memory."""


class Journal(About):
    """One SQLite file in WAL mode; every method may be called from any thread."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lexical = LexicalIndex(lexical_path(path))

    def close(self) -> None:
        """Close the file and the lexical index."""
        super().close()
        self._lexical.close()

    def switch(self, live: str | None, *, empty: bool = False) -> None:
        """From now on another collection answers, with the same chunks or, `empty`, with none."""
        mark = self._lexical.make() if empty else None
        with self._transaction() as connection:
            connection.execute("DELETE FROM about WHERE name = 'live'")
            if live is not None:
                connection.execute("INSERT INTO about VALUES ('live', ?)", (live,))
            if mark:
                for table in ("documents", "chunks", "pending", "files", "failures", "unindexed"):
                    connection.execute(f"DELETE FROM {table}")
                rows.note_indexed(connection, str(mark))
        if mark:
            self._lexical.sweep(mark)

    def documents(self) -> list[StoredDocument]:
        """All documents, by source."""
        return self._documents("ORDER BY source")

    def document(self, source: str) -> StoredDocument | None:
        """One document."""
        return next(iter(self._documents("WHERE source = ?", (source,))), None)

    def files(self) -> dict[str, str]:
        """The content hash of each file that was read to its end."""
        return dict(self._rows("SELECT file, content_hash FROM files"))

    def failures(self) -> dict[str, Failure]:
        """The files that are not to be tried again as they are."""
        found = self._rows("SELECT file, content_hash, limits, reason FROM failures")
        return {file: Failure(*about) for file, *about in found}

    def count(self) -> tuple[int, int]:
        """The numbers of documents and of chunks."""
        return self._rows("SELECT count(*), coalesce(sum(chunks), 0) FROM documents")[0]

    def search(
        self,
        query: str,
        k: int,
        *,
        meets: Callable[[list[str]], Collection[str]] = lambda ids: ids,
        among: Collection[str] | None = None,
        likely: Likely | None = None,
        depth: int = 0,
    ) -> list[tuple[str, float]]:
        """The lexical leg, without chunks that belong to no document: see `LexicalIndex.search`.

        Of the candidates, at first `depth` or `k` of them, or of `among` only, those that `meets` leaves. Their ids are
        not read where their keys are not `likely`, which must be so for all that `meets` leaves.
        """
        depth = max(k, depth)
        while True:
            candidates, is_all = self._lexical.look(self._mark(), query, depth, among, likely)
            met = meets([id_ for id_, _ in candidates])
            known = self.known(met)
            found = [(id_, score) for id_, score in candidates if id_ in known]
            if len(found) >= k or is_all:
                return found[:k]
            depth *= 4

    def lexical_scores(self, query: str, ids: Collection[str]) -> dict[str, float]:
        """See `LexicalIndex.scores`."""
        return self._lexical.scores(self._mark(), query, ids)

    def term_weights(self, query: str) -> dict[str, float]:
        """See `LexicalIndex.weights`."""
        return self._lexical.weights(self._mark(), query)

    def lexical_is_behind(self) -> bool:
        """Whether the lexical index is missing, broken, of other terms than today's, or not of all chunks."""
        ((chunks, waiting),) = self._rows("SELECT (SELECT count(*) FROM chunks), (SELECT count(*) FROM unindexed)")
        if waiting:
            return True
        try:
            self._lexical.check(self._mark(), chunks)
        except DamagedIndex:
            return True
        return False

    def index(self, *, check: bool = False) -> bool:
        """Let the lexical index see what has changed; for the writer. False when it must be made anew.

        Killed at any point, the next time does the same again.
        """
        query = f"SELECT number, id, terms FROM unindexed ORDER BY number LIMIT {INDEXED}"
        try:
            while changes := self._rows(query):
                last = {id_: new for _, id_, new in changes}
                new = [(id_, new) for id_, new in last.items() if new is not None]
                mark = self._lexical.write(self._mark(), last, new)
                with self._transaction(changing=False) as connection:
                    rows.note_indexed(connection, str(mark), number=changes[-1][0])
            self._lexical.sweep(self._mark())
        except DamagedIndex:
            return False
        return not check or not self.lexical_is_behind()

    def rebuild_lexical(self, texts: Iterable[tuple[str, str]]) -> None:
        """Make the lexical index anew, from the id and the text of every chunk; until then the old one answers."""
        mark = self._lexical.make()
        for some in in_batches(texts, INDEXED):
            mark = self._lexical.write(mark, (), [(id_, " ".join(terms(text))) for id_, text in some])
        with self._transaction(changing=False) as connection:
            connection.execute("DELETE FROM unindexed")
            rows.note_indexed(connection, str(mark))
        self._lexical.sweep(mark)

    def ids(self, source: str | None = None) -> Iterator[str]:
        """The ids of all chunks, or of one document's, in the order in which they were stored."""
        of_source, values = ("", ()) if source is None else ("AND source = ?", (source,))
        query, last = f"SELECT rowid, id FROM chunks WHERE rowid > ? {of_source} ORDER BY rowid LIMIT 5000", -1
        while found := self._rows(query, (last, *values)):
            last = found[-1][0]
            yield from (id_ for _, id_ in found)

    def around(self, id_: str, width: int) -> tuple[list[str], list[str]]:
        """The ids of up to `width` chunks before that one in its document, and of as many behind it, nearest first."""
        before, behind = (
            self._rows(
                f"SELECT other.id FROM chunks AS other JOIN chunks AS own USING (source) WHERE own.id = ? "
                f"AND other.rowid {than} own.rowid ORDER BY other.rowid {order} LIMIT ?",
                (id_, width),
            )
            for than, order in (("<", "DESC"), (">", "ASC"))
        )
        return [one for (one,) in before], [one for (one,) in behind]

    def after(self, rowid: int) -> list[tuple[int, str]]:
        """The rows and ids of the chunks behind that row."""
        return self._rows("SELECT rowid, id FROM chunks WHERE rowid > ? ORDER BY rowid", (rowid,))

    def id_at(self, rowid: int) -> str | None:
        """The chunk in that row."""
        return next((id_ for (id_,) in self._rows("SELECT id FROM chunks WHERE rowid = ?", (rowid,))), None)

    def by_text(self) -> Iterator[tuple[str, bytes]]:
        """The id of each chunk with the digest of its text; those of equal texts follow each other."""
        query = "SELECT id, digest, rowid FROM chunks WHERE (digest, rowid) > (?, ?) ORDER BY digest, rowid LIMIT 5000"
        last: tuple = b"", -1
        while found := self._rows(query, last):
            last = found[-1][1:]
            yield from ((id_, digest) for id_, digest, _ in found)

    def sources(self, ids: Iterable[str]) -> dict[str, str]:
        """The document of each of `ids` that belongs to one."""
        return dict(self._where_in("SELECT id, source FROM chunks WHERE id IN", ids))

    def whole(self, ids: Iterable[str]) -> dict[str, str]:
        """The document of each of `ids` that is all of a document without a file."""
        query = (
            "SELECT id, source FROM chunks JOIN documents USING (source) WHERE file IS NULL AND chunks = 1 AND id IN"
        )
        return dict(self._where_in(query, ids))

    def known(self, ids: Iterable[str]) -> set[str]:
        """Those of `ids` that belong to a document."""
        return {id_ for (id_,) in self._where_in("SELECT id FROM chunks WHERE id IN", ids)}

    def ids_by_digest(self, digests: Iterable[bytes]) -> dict[bytes, str]:
        """For each text whose vector may already be in Chroma, one chunk that has it."""
        wanted = list(digests)
        pending = self._where_in("SELECT digest, id FROM pending WHERE digest IN", wanted)
        return dict(pending + self._where_in("SELECT digest, id FROM chunks WHERE digest IN", wanted))

    def pending(self) -> list[str]:
        """Ids that may be in Chroma and belong to no document."""
        return [id_ for (id_,) in self._rows("SELECT id FROM pending WHERE id NOT IN (SELECT id FROM chunks)")]

    def announce(self, chunks: Iterable[StoredChunk]) -> None:
        """Note chunks that are about to be written to Chroma."""
        with self._transaction() as connection:
            new = [(chunk.id, chunk.digest) for chunk in chunks]
            connection.executemany("INSERT OR IGNORE INTO pending VALUES (?, ?)", new)
            rows.count_unwritten(connection, len(new))

    def forget(self, ids: Iterable[str]) -> None:
        """Note that these ids are no longer in Chroma."""
        with self._transaction() as connection:
            gone = [(id_,) for id_ in ids]
            connection.executemany("DELETE FROM pending WHERE id = ?", gone)
            rows.count_unwritten(connection, len(gone))

    def replace(self, document: StoredDocument, chunks: Iterable[StoredChunk]) -> None:
        """Make the chunks, all in Chroma by now, the document's own; those it had before become pending.

        Its file no longer counts as read to its end: killed now, and changed back, it would seem to be unchanged.
        """
        with self._transaction() as connection:
            rows.drop(connection, document.source)
            connection.execute("DELETE FROM files WHERE file = ?", (document.file,))
            row = (document.source, document.content_hash, document.chunks, json.dumps(document.problems))
            connection.execute("INSERT INTO documents VALUES (?, ?, ?, ?, ?)", (*row, document.file))
            for chunk in chunks:
                rows.insert(connection, chunk, document.source)

    def remove(self, source: str) -> None:
        """Take a document out; its chunks become pending, and its file no longer counts as read to its end."""
        with self._transaction() as connection:
            rows.read_again(connection, source)
            rows.drop(connection, source)

    def finish(
        self, file: str, content_hash: str | None, kept: Collection[str], failure: Failure | None = None
    ) -> None:
        """Take out the documents of `file` that are not in `kept`; without a hash it was not read to its end."""
        with self._transaction() as connection:
            rows.forget_file(connection, file, kept)
            if content_hash is not None:
                connection.execute("INSERT INTO files VALUES (?, ?)", (file, content_hash))
            if failure:
                row = (file, failure.content_hash, failure.limits, failure.reason)
                connection.execute("INSERT INTO failures VALUES (?, ?, ?, ?)", row)

    def remove_file(self, file: str) -> None:
        """Take out a file with all of its documents."""
        with self._transaction() as connection:
            rows.forget_file(connection, file, kept=())

    def remove_chunks(self, ids: Iterable[str]) -> None:
        """Take single chunks out; the files of their documents no longer count as read."""
        with self._transaction() as connection:
            for id_ in ids:
                rows.drop_chunk(connection, id_)

    def _mark(self) -> Mark:
        return Mark.read(self._about("lexical"))

    def _documents(self, which: str, values: Iterable = ()) -> list[StoredDocument]:
        found = self._rows(f"SELECT source, content_hash, chunks, problems, file FROM documents {which}", values)
        return [
            StoredDocument(source, content_hash, chunks, tuple(json.loads(problems)), file)
            for source, content_hash, chunks, problems, file in found
        ]
