"""What is kept of a knowledge base's chunks in memory, so that few chunks or a filter need not ask Chroma.

A chunk takes two bytes for each dimension and some 300 more. An id names all that is stored with it (`rows.chunk_id`),
so that chunks only come and go.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ingest.columns import Columns
from ingest.lexical import Likely, key

if TYPE_CHECKING:
    import numpy

FEW = 8
"""Where a filter leaves less than one row in so many, these are copied, and only they are compared."""
SHORTLIST, AT_LEAST = 4, 32
"""So many times as many rows as are wanted are compared again, exactly: sums of float16 are rounded."""
LEAST_NORM = 1e-12
SPARSE, LARGEST = 16, 2**21
"""Places for each key, and at most, that tell which keys are likely: the more, the fewer others are taken for them."""


class Resident:
    """Ids, vectors and metadata of chunks by row. One thread at a time adds and drops; any thread may ask."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.row_of: dict[str, int] = {}
        self.gone = 0
        self._there: Any = None
        self._columns = Columns()
        self._matrix: Any = None
        self._scale: Any = None
        self._keys: Any = None

    def __len__(self) -> int:
        """Rows, those that are gone among them."""
        return len(self.ids)

    def add(self, ids: Sequence[str], vectors: "numpy.ndarray", abouts: Sequence[Mapping[str, Any] | None]) -> None:
        """Further chunks: ids that are not there yet, one row of `vectors` and metadata each."""
        if not ids:
            return
        self._add_vectors(vectors)
        self._keys[len(self.ids) : len(self.ids) + len(ids)] = [key(id_) for id_ in ids]
        self._columns.add(abouts)
        first = len(self.ids)
        self.ids.extend(ids)  # from here on the rows are seen
        self.row_of.update((id_, row) for row, id_ in enumerate(ids, first))

    def drop(self, ids: Iterable[str]) -> None:
        """These are found no more."""
        for id_ in ids:
            row = self.row_of.pop(id_, None)
            if row is not None and self._there is not None:
                self._there[row] = False
                self.gone += 1

    def meeting(self, where: Mapping[str, Any] | None) -> "numpy.ndarray":
        """Which rows are there and meet Chroma's `where`, as an array of bool. Raises Unanswerable."""
        import numpy

        met = self._columns.meeting(where, len(self)) if where else numpy.ones(len(self), dtype="bool")
        return met if self._there is None else met & self._there[: len(met)]

    def keys(self, allowed: "numpy.ndarray") -> "numpy.ndarray":
        """The lexical index's keys of the rows that are allowed, an array of bool."""
        return self._keys[: len(allowed)][allowed]

    def similarities(self, vector: "numpy.ndarray", rows: Sequence[int]) -> "numpy.ndarray":
        """Cosine similarities of rows to a vector of length 1."""
        if self._matrix is None or not len(rows):
            return vector[:0]
        chosen = self._matrix[rows].astype("float32")
        return ((chosen @ vector) * self._scale[rows]).clip(-1, 1)

    def nearest(self, vector: "numpy.ndarray", k: int, allowed: "numpy.ndarray") -> tuple["numpy.ndarray", Any]:
        """Of the rows that are allowed, an array of bool, those nearest to a vector of length 1, and their cosine
        similarities, best first. From one thread, for torch keeps a team of threads for each that it is called from.
        """
        import numpy
        import torch

        rows, query = numpy.flatnonzero(allowed), torch.from_numpy(vector).half()
        if not len(rows):
            return rows, vector[:0]
        if FEW * len(rows) < len(allowed):
            scores = torch.mv(torch.from_numpy(self._matrix).index_select(0, torch.from_numpy(rows)), query)
        else:
            scores = torch.mv(torch.from_numpy(self._matrix[: len(allowed)]), query)[torch.from_numpy(allowed)]
        best = scores.float().topk(min(len(rows), max(AT_LEAST, SHORTLIST * k)), sorted=False)
        chosen = rows[best.indices.numpy()]
        exact = self.similarities(vector, chosen)
        order = numpy.lexsort((chosen, -exact))[:k]
        return chosen[order], exact[order]

    def _add_vectors(self, vectors: "numpy.ndarray") -> None:
        import numpy

        first, end = len(self.ids), len(self.ids) + len(vectors)
        if self._matrix is None or end > len(self._matrix):
            room = max(end, 2 * first)
            self._matrix = _longer(self._matrix, numpy.zeros((room, vectors.shape[1]), dtype="float16"))
            self._scale = _longer(self._scale, numpy.zeros(room, dtype="float32"))
            self._keys = _longer(self._keys, numpy.zeros(room, dtype="uint32"))
            self._there = _longer(self._there, numpy.ones(room, dtype="bool"))
        unit = vectors / numpy.maximum(numpy.linalg.norm(vectors, axis=1, keepdims=True), LEAST_NORM)
        rounded = unit.astype("float16")
        self._matrix[first:end] = rounded
        self._scale[first:end] = 1 / numpy.maximum(numpy.linalg.norm(rounded.astype("float32"), axis=1), LEAST_NORM)


def _longer(old: Any, new: Any) -> Any:
    """The new array with the old one's rows in front; who still reads the old one keeps it."""
    if old is not None:
        new[: len(old)] = old
    return new


@dataclass(frozen=True)
class Allowed:
    """The chunks that meet a filter: an array of bool, for as many rows as there were."""

    resident: Resident
    rows: "numpy.ndarray"

    @cached_property
    def count(self) -> int:
        return int(self.rows.sum())

    @property
    def one_in(self) -> float:
        """So many chunks have one among them that is allowed."""
        return len(self.rows) / max(self.count, 1)

    def ids(self) -> list[str]:
        return [self.resident.ids[row] for row in self.rows.nonzero()[0]]

    def of(self, ids: Sequence[str]) -> set[str]:
        """Those of `ids` that are allowed."""
        row_of, end = self.resident.row_of, len(self.rows)
        return {id_ for id_ in ids if (row := row_of.get(id_, end)) < end and self.rows[row]}

    def likely(self) -> Likely:
        """Which keys of the lexical index may be those of these chunks: all that are, and few of the others."""
        import numpy

        places = 1 << (min(SPARSE * self.count, LARGEST) - 1).bit_length()
        taken = numpy.zeros(places, dtype="bool")
        taken[self.resident.keys(self.rows) & (places - 1)] = True
        return lambda keys: taken[keys & (places - 1)]

    def nearest(self, vector: Sequence[float], k: int) -> list[tuple[str, float]]:
        """Exactly the `k` nearest of them: id and cosine similarity, best first."""
        rows, similarities = self.resident.nearest(unit(vector), k, self.rows)
        return [(self.resident.ids[row], float(similarity)) for row, similarity in zip(rows, similarities, strict=True)]


def unit(vector: Sequence[float]) -> "numpy.ndarray":
    """The vector at length 1, in float32."""
    import numpy

    given = numpy.asarray(vector, dtype="float32")
    return given / max(float(numpy.linalg.norm(given)), LEAST_NORM)
