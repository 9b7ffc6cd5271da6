"""Jupyter notebooks: Markdown, code and the text that the code printed, a place for each cell."""

import json
from collections.abc import Iterator
from typing import Any

from ingest.decode import clean, decode
from ingest.document import LoadedDocument, LoadOptions, Unreadable
from ingest.formats.assembly import Assembly
from ingest.formats.text import markdown_headings

# https://nbformat.readthedocs.io/en/latest/format_description.html


def read_notebook(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """Cells are numbered from 1 in their order."""
    try:
        notebook = json.loads(decode(raw))
        sheets = notebook.get("worksheets") or [notebook]  # version 3 had sheets
        cells = [dict(cell) for sheet in sheets for cell in sheet["cells"]]
    except (ValueError, RecursionError, KeyError, AttributeError, TypeError) as error:
        raise Unreadable(f"is no Jupyter notebook ({type(error).__name__}: {error})") from error
    parts = Assembly("cell")
    for number, cell in enumerate(cells, 1):
        parts.place(number)
        kind, text = cell.get("cell_type"), _joined(cell.get("source", cell.get("input")))
        if kind == "markdown":
            _add_markdown(parts, text)
        elif kind == "heading":
            parts.heading(cell.get("level", 1), text)
        else:
            parts.code(text)
        for output in _outputs(cell):
            parts.code(output)
    return parts.document(source)


def _add_markdown(parts: Assembly, text: str) -> None:
    text, taken = clean(text), 0
    for start, level, title in markdown_headings(text):
        parts.block(text[taken:start])
        parts.heading(level, title)
        taken = start + len(text[start:].split("\n", 1)[0])
    parts.block(text[taken:])


def _outputs(cell: Any) -> Iterator[str]:
    """What was printed or shown as text; a failed cell's error without its trace."""
    for output in cell.get("outputs") or []:
        shown = output.get("data", output)
        yield _joined(output.get("text") or shown.get("text/plain") or shown.get("text/markdown"))
        yield ": ".join(filter(None, [output.get("ename"), output.get("evalue")]))


def _joined(text: Any) -> str:
    return "".join(map(str, text)) if isinstance(text, list) else str(text or "")
