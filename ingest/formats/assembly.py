"""Blocks of text → a document, with the offset of each heading and place."""

from typing import Any

from ingest.decode import clean
from ingest.document import LoadedDocument
from ingest.formats.typesetting import readable

WIDEST = 100
"""Columns of a table, at most, as far as cells span them."""


class Assembly:
    """A document in the making: blocks a blank line apart."""

    def __init__(self, place_kind: str = "page", *, separator: str = "\n\n") -> None:
        self._place_kind, self._separator = place_kind, separator
        self._blocks: list[str] = []
        self._length = 0
        self._places: list[tuple[int, int | str]] = []
        self._headings: list[tuple[int, int, str]] = []

    @property
    def has_text(self) -> bool:
        """Whether any block has been added."""
        return bool(self._blocks)

    def place(self, name: int | str) -> None:
        """What follows is on that page, slide or sheet."""
        if self._places and self._places[-1][0] == self._length:
            self._places.pop()  # nothing was on it
        self._places.append((self._length, name))

    def heading(self, level: int, title: str) -> None:
        """A heading of level 1 to 6."""
        title = " ".join(readable(title).split())
        if title:
            level = max(1, min(6, level))
            self._headings.append((self._length, level, title))
            self._add(f"{'#' * level} {title}")

    def block(self, text: str) -> None:
        """A paragraph, a list, a table: anything that stands by itself; white space around it is dropped."""
        self._add(readable(text).strip())

    def code(self, text: str) -> None:
        """The same for what stays as it is written, ligatures included."""
        self._add(clean(text).strip())

    def document(self, source: str, **rest: Any) -> LoadedDocument:
        """The document; `rest` are further fields of LoadedDocument."""
        if self._places and self._places[-1][0] == self._length:
            self._places.pop()
        text = self._separator.join(self._blocks)
        return LoadedDocument(
            source, text, tuple(self._places), tuple(self._headings), place_kind=self._place_kind, **rest
        )

    def _add(self, text: str) -> None:
        if text:
            self._blocks.append(text)
            self._length += len(text) + len(self._separator)


def row_line(header: list[str], row: list[str]) -> str:
    """A row that can stand alone: `header: value; header: value`."""
    names = header + [""] * (len(row) - len(header))
    return "; ".join(f"{name}: {cell}" if name else cell for name, cell in zip(names, row, strict=False) if cell)


def one_line(text: str) -> str:
    """White space and line ends as single spaces."""
    return " ".join(text.split())


def table(rows: list[list[str]]) -> str:
    """The rows of a table, each with its header's names; a table of one row or one column as it is."""
    rows = [cells for row in rows if any(cells := [one_line(cell) for cell in row])]
    if len(rows) == 1 or max(map(len, rows), default=0) < 2:
        return "\n".join("; ".join(filter(None, row)) for row in rows)
    return "\n".join(["; ".join(filter(None, rows[0])), *(row_line(rows[0], row) for row in rows[1:])])


def spread(rows: list[list[tuple[str, int, int]]]) -> list[list[str]]:
    """Rows of cells with the columns and the rows they span → rows of as many texts as columns: a cell's text stands in
    its first column, in each of its rows."""
    grid: list[list[str]] = []
    hanging: dict[int, tuple[str, int]] = {}
    for row in rows:
        line: list[str] = []
        for text, columns, height in [*row, ("", 0, 0)]:
            while len(line) in hanging:  # a cell of a row above
                above, left = hanging.pop(len(line))
                if left > 1:
                    hanging[len(line)] = above, left - 1
                line.append(above)
            for index in range(min(columns, WIDEST)):
                if height > 1 and len(line) < WIDEST:
                    hanging[len(line)] = text if not index else "", height - 1
                line.append(text if not index else "")
        grid.append(line)
    return grid
