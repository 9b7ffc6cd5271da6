"""Tables: delimited text, and workbooks of Excel and OpenDocument; each row a line that can stand alone."""

import csv
import datetime
import io
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from ingest.decode import clean, decode
from ingest.document import LoadedDocument, LoadOptions
from ingest.formats import drawing, opendocument
from ingest.formats.assembly import Assembly, one_line, row_line
from ingest.formats.package import Package
from ingest.formats.protected import opened
from ingest.formats.web import read_html

SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
LONGEST_FIELD = 2**24


def read_delimited(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """Each row becomes one line `header: value; header: value`; line n is record n."""
    text = decode(raw)
    csv.field_size_limit(LONGEST_FIELD)
    delimited = csv.reader(io.StringIO(text), "excel-tab" if _suffix(source) == ".tsv" else _dialect(text))
    rows = [[one_line(cell) for cell in row] for row in delimited]
    header = rows[0] if rows else []
    lines = ["; ".join(filter(None, header)), *(row_line(header, row) for row in rows[1:])]
    return LoadedDocument(source, "\n".join(lines), line_is_unit=True, has_lines=True)


def read_workbook(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """Each sheet is a place, named like it; formulas as the values that were computed last; comments, text boxes and
    charts at the end."""
    package = Package(raw, options)
    return _sheets(source, package.raw, _beside_cells(package), metadata=package.metadata())


def read_open_workbook(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """An .ods, in the same way."""
    package = opendocument.opened(raw, options)
    beside = opendocument.beside_cells(package)
    return _sheets(source, package.raw, beside, metadata=package.metadata("meta.xml"))


def read_old_workbook(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """An .xls of Excel 97 to 2003; or what programs write under that name: a page, or a workbook of today."""
    if raw.lstrip().startswith(b"<"):
        return read_html(source, raw, options)
    if raw.startswith(b"PK"):
        return read_workbook(source, raw, options)
    return _sheets(source, opened(raw, options.passwords, old=True), {})


def _sheets(source: str, raw: bytes, beside: dict[str, list[str]], **rest: Any) -> LoadedDocument:
    from python_calamine import CalamineWorkbook

    workbook = CalamineWorkbook.from_filelike(io.BytesIO(raw))
    parts = Assembly("sheet", separator="\n")
    for name in workbook.sheet_names:
        lines = [*_rows(workbook.get_sheet_by_name(name).to_python()), *beside.get(name, [])]
        if lines:
            parts.place(name)
            parts.heading(2, name)
        for line in lines:
            parts.block(line)
    return parts.document(source, line_is_unit=True, **rest)


def _suffix(source: str) -> str:
    return PurePosixPath(source.lower()).suffix


def _dialect(text: str) -> type[csv.Dialect]:
    try:
        return csv.Sniffer().sniff(text[:8192], delimiters=",;\t|")
    except csv.Error:  # a single column
        return csv.excel


def _rows(cells: list[list[Any]]) -> Iterator[str]:
    """Rows with text, each with the names of the header, which may lie below a title."""
    rows = [row for row in ([_shown(cell) for cell in row] for row in cells) if any(row)]
    above = _header(rows)
    yield from ("; ".join(filter(None, row)) for row in rows[: above + 1])
    yield from (row_line(rows[above], row) for row in rows[above + 1 :])


def _header(rows: list[list[str]]) -> int:
    """The first row that is at least half as wide as the widest; a title above a table is one cell."""
    widths = [sum(map(bool, row)) for row in rows]
    return next((at for at, width in enumerate(widths) if 2 * width >= max(widths)), 0)


def _shown(cell: Any) -> str:
    """A cell as a reader of the sheet would see it."""
    if isinstance(cell, bool):
        return str(cell).upper()
    if isinstance(cell, float):
        return f"{cell:.15g}"
    if isinstance(cell, datetime.datetime | datetime.date | datetime.time):
        return cell.isoformat(" ") if isinstance(cell, datetime.datetime) else cell.isoformat()
    return one_line(clean(str(cell)))


def _beside_cells(package: Package) -> dict[str, list[str]]:
    """Sheet → `B2: comment`, of old comments ("notes") and of threaded ones, then text boxes and charts."""
    main = (package.parts("", "officeDocument") or ["xl/workbook.xml"])[0]
    sheets, found = package.related(main), {}
    for sheet in package.root(main).iter(f"{SHEET}sheet"):
        _, path = sheets.get(sheet.get(RELATION), ("", ""))
        # A threaded comment leaves an old one behind that says that it cannot be shown.
        parts = package.parts(path, "threadedComment") or package.parts(path, "comments")
        comments = [line for part in parts for line in _comment_lines(package.root(part))]
        found[sheet.get("name")] = [*comments, *filter(None, drawing.on_a_sheet(package, path))]
    return found


def _comment_lines(part: Any) -> Iterator[str]:
    for comment in part.iter("{*}comment", "{*}threadedComment"):
        if text := one_line(clean("".join(comment.itertext()))):
            yield f"{comment.get('ref')}: {text}"
