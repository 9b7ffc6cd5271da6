"""Metadata of many chunks in memory, and which of them meet a filter: Chroma's `where`, value by value."""

from collections.abc import Callable, Mapping, Sequence
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

DIFFERENT = 100_000
"""Values of one name that are kept; a filter by a name that has more is Chroma's to answer."""
EXACT = 2**53
"""Whole numbers up to this one are the same as floats."""
ORDER: dict[str, Callable[[Any, Any], bool]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}
SCALARS = (bool, int, float, str)

Value = tuple[type, Any]
"""A value with its type, for `True`, `1` and `1.0` are equal in Python."""


class Unanswerable(Exception):
    """A filter that only Chroma can answer, or refuse."""


class _Column:
    """The values of one name; a row's code is 0 where it has none."""

    def __init__(self, codes: "numpy.ndarray") -> None:
        self.codes = codes
        self.code_of: dict[Value, int] = {}

    def code(self, value: Any) -> int:
        return self.code_of.setdefault(_typed(value), len(self.code_of) + 1)


class Columns:
    """Rows are added at the end by one thread at a time; any thread may ask for those it knows of."""

    def __init__(self) -> None:
        self._rows = self._room = 0
        self._columns: dict[str, _Column | None] = {}

    def add(self, abouts: Sequence[Mapping[str, Any] | None]) -> None:
        """Metadata of further rows."""
        self._make_room(self._rows + len(abouts))
        for row, about in enumerate(abouts, self._rows):
            for name, value in (about or {}).items():
                if (column := self._column(name)) is not None:
                    column.codes[row] = column.code(value)
        self._rows += len(abouts)

    def meeting(self, where: Mapping[str, Any], rows: int) -> "numpy.ndarray":
        """Which of the first `rows` rows meet Chroma's `where`. Raises Unanswerable.

        As Chroma 1.5.9 has it: `$ne`, `$nin` and `$not_contains` are met by what lacks the name; 1 equals 1.0 but not
        True, in lists not even 1.0; only numbers are ordered.
        """
        import numpy

        if len(where) != 1:
            raise Unanswerable(where)
        ((name, wanted),) = where.items()
        if name in ("$and", "$or"):
            if not isinstance(wanted, list) or len(wanted) < 2:
                raise Unanswerable(where)
            join = numpy.logical_and if name == "$and" else numpy.logical_or
            return join.reduce([self.meeting(one, rows) for one in wanted])
        if not isinstance(wanted, dict):
            wanted = {"$eq": wanted}
        if len(wanted) != 1 or name.startswith("$"):
            raise Unanswerable(where)
        ((operator, operand),) = wanted.items()
        return self._compared(name, operator, operand, rows)

    def _compared(self, name: str, operator: str, operand: Any, rows: int) -> "numpy.ndarray":
        import numpy

        positive, turned = _positive(operator)
        column = self._columns.get(name)
        if column is None and name in self._columns:
            raise Unanswerable(f"{name} has too many values")
        known = list(column.code_of.items()) if column and positive in (*ORDER, "$contains") else []
        codes = _codes(positive, operand, known, column.code_of if column else {})
        if column is None:
            return numpy.full(rows, turned)
        truth = numpy.full(len(column.code_of) + 1, turned)
        truth[codes] = not turned
        return truth[column.codes[:rows]]

    def _column(self, name: str) -> _Column | None:
        import numpy

        if name not in self._columns:
            self._columns[name] = _Column(numpy.zeros(self._room, dtype="int32"))
        column = self._columns[name]
        if column is not None and len(column.code_of) >= DIFFERENT:
            column = self._columns[name] = None
        return column

    def _make_room(self, rows: int) -> None:
        import numpy

        if rows > self._room:
            self._room = max(rows, 2 * self._room)
            for column in self._columns.values():
                if column is not None:
                    column.codes = numpy.concatenate(
                        [column.codes, numpy.zeros(self._room - len(column.codes), dtype="int32")]
                    )


def _positive(operator: str) -> tuple[str, bool]:
    """The operator without its "not", and whether it had one."""
    negative = {"$ne": "$eq", "$nin": "$in", "$not_contains": "$contains"}
    return negative.get(operator, operator), operator in negative


def _codes(operator: str, operand: Any, known: list[tuple[Value, int]], code_of: Mapping[Value, int]) -> list[int]:
    """The codes of the values that hold. Raises Unanswerable."""
    if operator == "$in":
        if not isinstance(operand, list) or not operand or len({type(one) for one in operand}) > 1:
            raise Unanswerable(operand)
        return [code for one in operand for code in _equal(one, code_of)]
    if operator == "$eq":
        return _equal(operand, code_of)
    if operator == "$contains" and type(operand) in SCALARS:
        return [code for (kind, value), code in known if kind is list and _typed(operand) in value]
    if operator in ORDER and type(operand) in (int, float):
        holds = ORDER[operator]
        return [code for (kind, value), code in known if kind in (int, float) and holds(value, operand)]
    raise Unanswerable(operator)


def _equal(operand: Any, code_of: Mapping[Value, int]) -> list[int]:
    if type(operand) not in SCALARS or (type(operand) in (int, float) and not abs(operand) <= EXACT):
        raise Unanswerable(operand)
    kinds = (int, float) if type(operand) in (int, float) else (type(operand),)
    return [code_of[kind, operand] for kind in kinds if (kind, operand) in code_of]


def _typed(value: Any) -> Value:
    return (list, tuple(map(_typed, value))) if isinstance(value, list) else (type(value), value)
