"""A file → its text, with the page starts and headings that a citation needs."""

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest.decode import UndecodableText, clean, decode

DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
HEADING = re.compile(r"(#{1,6})[ \t]+(.+?)[ \t]*#*$")
FENCE = re.compile(r"[ \t]*(```|~~~)")
ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
# What a page's head says, kreuzberg would write as YAML before the text.
HEAD = re.compile(r"<title\b.*?</title\s*>|<meta\b[^>]*>|<link\b[^>]*>|<!--.*?-->", re.IGNORECASE | re.DOTALL)
DECLARED = re.compile(rb"<(?:meta|\?xml)[^>]*?(?:charset|encoding)\s*=\s*[\"']?\s*([\w:.-]+)", re.IGNORECASE)


class UnreadableFile(Exception):
    """The file cannot be opened, or is not what its suffix says."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path.name}: {reason}")
        self.path, self.reason = path, reason


class NoText(UnreadableFile):
    """The file holds no text."""


@dataclass(frozen=True)
class LoadedDocument:
    """One file's text. Offsets are characters of `text`; `pages` and `headings` are in the order of the text."""

    source: str
    text: str
    pages: tuple[tuple[int, int], ...] = ()
    """Each page's start and its number, from 1; empty where the format has no pages."""
    headings: tuple[tuple[int, int, str], ...] = ()
    """Each heading's start, its level from 1 to 6, and its title."""
    problems: tuple[str, ...] = ()
    """What is missing from the text although the file went in."""
    line_is_unit: bool = False
    """A line stands alone, as a row of a table does."""
    has_lines: bool = False
    """Lines of the text are lines of the file."""


def load(path: Path, source: str) -> LoadedDocument:
    """Read one file; `source` is the name it is cited by.

    Raises UnreadableFile with the reason in a plain sentence, and NoText (also an UnreadableFile).
    """
    try:
        document = FORMATS[path.suffix.lower()](source, path.read_bytes())
    except OSError as error:
        raise UnreadableFile(path, error.strerror or str(error)) from error
    except (UndecodableText, _Broken) as error:
        raise UnreadableFile(path, str(error)) from error
    if not document.text.strip():
        raise NoText(path, "no text" + "".join(f" ({problem})" for problem in document.problems))
    return document


class _Broken(Exception):
    pass


def _markdown(source: str, raw: bytes) -> LoadedDocument:
    text = decode(raw)
    return LoadedDocument(source, text, headings=_headings(text), has_lines=True)


def _plain(source: str, raw: bytes) -> LoadedDocument:
    return LoadedDocument(source, decode(raw), has_lines=True)


def _html(source: str, raw: bytes) -> LoadedDocument:
    declared = DECLARED.search(raw[:4096])
    page = decode(raw, declared=declared and declared[1].decode("ascii"))
    return _from_markdown(source, _extract(HEAD.sub("", page).encode(), "text/html"))


def _docx(source: str, raw: bytes) -> LoadedDocument:
    return _from_markdown(source, _extract(raw, DOCX))


def _pdf(source: str, raw: bytes) -> LoadedDocument:
    texts = [(page["page_number"], clean(page["content"]).strip()) for page in _extract(raw, "application/pdf").pages]
    pages, start = [], 0
    for number, text in texts:
        if text:
            pages.append((start, number))
            start += len(text) + 2
    empty = [str(number) for number, text in texts if not text]
    problems = (f"pages without text: {', '.join(empty)}",) if empty else ()
    return LoadedDocument(source, "\n\n".join(text for _, text in texts if text), tuple(pages), problems=problems)


def _table(source: str, raw: bytes) -> LoadedDocument:
    """Each row becomes one line `header: value; header: value`, so that it can stand alone; line n is record n."""
    text = decode(raw)
    rows = [[_one_line(cell) for cell in row] for row in csv.reader(io.StringIO(text), _dialect(text))]
    header = rows[0] if rows else []
    lines = ["; ".join(filter(None, header)), *(_row(header, row) for row in rows[1:])]
    return LoadedDocument(source, "\n".join(lines), line_is_unit=True, has_lines=True)


def _dialect(text: str) -> type[csv.Dialect]:
    try:
        return csv.Sniffer().sniff(text[:8192], delimiters=",;\t|")
    except csv.Error:  # a single column
        return csv.excel


def _one_line(cell: str) -> str:
    return " ".join(cell.split())


def _row(header: list[str], row: list[str]) -> str:
    names = header + [""] * (len(row) - len(header))
    return "; ".join(f"{name}: {cell}" if name else cell for name, cell in zip(names, row, strict=False) if cell)


FORMATS: dict[str, Callable[[str, bytes], LoadedDocument]] = {
    ".md": _markdown,
    ".markdown": _markdown,
    ".txt": _plain,
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
    ".docx": _docx,
    ".csv": _table,
}


def _extract(raw: bytes, mime: str) -> Any:
    """Run kreuzberg without OCR and without its cache folder in the current directory."""
    from kreuzberg import ExtractionConfig, KreuzbergError, PageConfig, extract_bytes_sync

    config = ExtractionConfig(  # type: ignore[call-arg]  # its stub lacks disable_ocr
        output_format="markdown", use_cache=False, disable_ocr=True, pages=PageConfig(extract_pages=True)
    )
    try:
        return extract_bytes_sync(raw, mime, config=config)
    except KreuzbergError as error:
        raise _Broken(_plainly(str(error))) from error


def _plainly(message: str) -> str:
    if "password" in message.lower():
        return "is protected by a password: save it without one"
    return f"is broken or not what its suffix says ({': '.join(message.splitlines()[0].split(': ')[:2])})"


def _from_markdown(source: str, result: Any) -> LoadedDocument:
    """Take the headings of kreuzberg's markdown, then take out the backslashes it put before punctuation."""
    marked = clean(result.content)
    headings, text, taken = [], "", 0
    for start, level, title in _headings(marked):
        text += ESCAPED.sub(r"\1", marked[taken:start])
        headings.append((len(text), level, ESCAPED.sub(r"\1", title)))
        taken = start
    return LoadedDocument(source, text + ESCAPED.sub(r"\1", marked[taken:]), headings=tuple(headings))


def _headings(markdown: str) -> tuple[tuple[int, int, str], ...]:
    found, start, fence = [], 0, None
    for line in markdown.splitlines(keepends=True):
        if mark := FENCE.match(line):
            fence = mark[1] if fence is None else None if mark[1] == fence else fence
        elif fence is None and (heading := HEADING.match(line.rstrip("\n"))):
            found.append((start, len(heading[1]), heading[2]))
        start += len(line)
    return tuple(found)
