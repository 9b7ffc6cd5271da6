"""OpenDocument: text and slides in their order, headers and footers once, notes and comments where they are called,
what is drawn after its paragraph; of workbooks what is not in their cells."""

from collections.abc import Iterator
from mimetypes import guess_type
from posixpath import normpath
from typing import Any

from ingest.document import LoadedDocument, LoadOptions
from ingest.formats.assembly import Assembly, one_line, table
from ingest.formats.encryption import decrypted, is_encrypted
from ingest.formats.extraction import recognised_pictures
from ingest.formats.package import Package
from ingest.formats.slides import add_slides

NAMES = "{urn:oasis:names:tc:opendocument:xmlns:%s:1.0}"
TEXT, TABLE, DRAW, OFFICE, STYLE = (NAMES % name for name in ("text", "table", "drawing", "office", "style"))
CHART, DRAWN_TITLE, META = NAMES % "chart", NAMES % "svg-compatible", NAMES % "meta"
DUBLIN_CORE = "{http://purl.org/dc/elements/1.1/}"
LINK = "{http://www.w3.org/1999/xlink}href"
UNSEEN = {f"{TEXT}tracked-changes", f"{TEXT}note-citation", f"{TEXT}sequence-decls", f"{DUBLIN_CORE}date"}
UNSEEN |= {f"{META}creator-initials", f"{META}date-string", f"{OFFICE}binary-data"}
ANNOTATION, DESCRIPTIONS = f"{OFFICE}annotation", (f"{DRAWN_TITLE}title", f"{DRAWN_TITLE}desc")
LONGEST_REPEAT = 100


def read_text(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """An .odt."""
    package, parts = opened(raw, options), Assembly()
    body = package.root("content.xml").find(f"{OFFICE}body")
    _Story(package, parts).add(body)
    for text in (*_margins(package, "header"), *_margins(package, "footer")):
        parts.block(text)
    pictures = [] if body is None or (parts.has_text and not options.ocr) else _pictures(package, body)
    recognised, why = recognised_pictures(pictures) if options.ocr else ("", "")
    parts.block(recognised)
    problems = (f"pictures without text: {len(pictures)}{why}",) if pictures and not parts.has_text else ()
    return parts.document(source, problems=problems, metadata=package.metadata("meta.xml"))


def read_slides(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """An .odp, a place for each slide; slides that hold a picture and no text are a problem."""
    package, parts = opened(raw, options), Assembly("slide")
    problems = add_slides(
        parts,
        package.root("content.xml").iter(f"{DRAW}page"),
        add=lambda page: _Story(package, parts).add(page),
        pictures=lambda page: _pictures(package, page),
        options=options,
    )
    return parts.document(source, problems=problems, metadata=package.metadata("meta.xml"))


def opened(raw: bytes, options: LoadOptions) -> Package:
    """The package, decrypted. Raises Unreadable, and Protected when none of the passwords opens it."""
    package = Package(raw, options)
    return Package(decrypted(package, options), options) if is_encrypted(package) else package


def beside_cells(package: Package) -> dict[str, list[str]]:
    """Sheet → `B2: comment`, then the text boxes and the charts on it; what a chart shows of the cells is in these."""
    content = package.content("content.xml")
    if not any(tag in content for tag in (b"<office:annotation", b"<draw:")):  # which takes far less than to parse it
        return {}
    sheets = package.root("content.xml").iterfind(f"{OFFICE}body/{OFFICE}spreadsheet/{TABLE}table")
    return {
        sheet.get(f"{TABLE}name", ""): [*_comments(sheet), *filter(None, _drawn(package, sheet))] for sheet in sheets
    }


def _comments(sheet: Any) -> Iterator[str]:
    row_number = 0
    for row in sheet.iter(f"{TABLE}table-row"):
        column = 0
        for cell in row.iterchildren(f"{TABLE}table-cell", f"{TABLE}covered-table-cell"):
            for comment in cell.iterchildren(ANNOTATION):
                text = " ".join(one_line(_inline(one, [])) for one in comment.iter(f"{TEXT}p"))
                if text:
                    yield f"{_letters(column)}{row_number + 1}: {text}"
            column += _repeat(cell, "columns")
        row_number += _repeat(row, "rows")


def _drawn(package: Package, sheet: Any) -> Iterator[str]:
    for element in sheet.iter(f"{DRAW}*"):
        if element.tag == f"{DRAW}object":
            yield _embedded(package, element, in_cells=True)
        yield "\n".join(filter(None, (one_line(_inline(one, [])) for one in element.iterchildren(f"{TEXT}p"))))


def _repeat(element: Any, kind: str) -> int:
    repeat = element.get(f"{TABLE}number-{kind}-repeated") or "1"
    return int(repeat) if repeat.isdecimal() and len(repeat) < 9 else 1


def _letters(column: int) -> str:
    """0 → A, 26 → AA."""
    before, last = divmod(column, 26)
    return (_letters(before - 1) if before else "") + chr(ord("A") + last)


def _embedded(package: Package, element: Any, *, in_cells: bool = False) -> str:
    """A chart's titles and, unless they are cells of the workbook, its values; another object's text."""
    part = f"{normpath(element.get(LINK) or 'none')}/content.xml"
    body = package.root(part).find(f"{OFFICE}body") if package.content(part) else None
    if body is None:
        return ""
    if (chart := body.find(f"{OFFICE}chart")) is None:
        parts = Assembly()
        _Story(package, parts).add(body)
        return parts.document("").text
    titles = [one_line(_inline(one, [])) for one in chart.iter(f"{CHART}title", f"{CHART}subtitle", f"{CHART}footer")]
    values = [] if in_cells else [table(list(_rows(one, []))) for one in chart.iter(f"{TABLE}table")]
    return "\n".join(filter(None, [*titles, *values]))


def _pictures(package: Package, element: Any) -> list[tuple[bytes, str]]:
    """Content and media type of each picture in it."""
    links = [normpath(image.get(LINK) or "none") for image in element.iter(f"{DRAW}image")]
    pictures = [(package.content(link), guess_type(link)[0] or "image/png") for link in links]
    return [picture for picture in pictures if picture[0]]


def _margins(package: Package, kind: str) -> list[str]:
    """The distinct texts of all headers or footers; a file need not have styles."""
    styles = package.root("styles.xml").iter() if package.content("styles.xml") else ()
    found = [one for one in styles if _is_margin(one, kind)]
    texts = [" ".join(" ".join(_inline(part, []) for part in one).split()) for one in found]
    return [text for text in dict.fromkeys(texts) if any(map(str.isalpha, text))]


def _is_margin(element: Any, kind: str) -> bool:
    return element.tag in (f"{STYLE}{kind}", f"{STYLE}{kind}-left", f"{STYLE}{kind}-first")


class _Story:
    """A content being read."""

    def __init__(self, package: Package, parts: Assembly) -> None:
        self._package, self._parts = package, parts
        self._said = False

    def add(self, container: Any) -> bool:
        """Blocks in their order; whether there were any."""
        for element in () if container is None else container:
            self._element(element)
        return self._said

    def _element(self, element: Any) -> None:
        boxes: list[Any] = []
        if element.tag == f"{TEXT}h":
            level = element.get(f"{TEXT}outline-level") or "1"
            self._parts.heading(int(level), title := _inline(element, boxes))
            self._said |= bool(title.strip())
        elif element.tag in (f"{TEXT}p", ANNOTATION, *DESCRIPTIONS):
            self._block(_inline(element, boxes))
        elif element.tag == f"{TEXT}list-item":
            lines = [line for part in element if (line := _inline(part, boxes)).strip()]
            self._block(f"- {text}" if (text := "\n".join(lines)) else "")
        elif element.tag == f"{TABLE}table":
            self._block(table(list(_rows(element, boxes))))
        elif element.tag == f"{DRAW}object":
            self._block(_embedded(self._package, element))
        elif element.tag not in UNSEEN:
            self.add(element)
        self.add(boxes)

    def _block(self, text: str) -> None:
        self._parts.block(text)
        self._said |= bool(text.strip())


def _rows(element: Any, boxes: list[Any]) -> Iterator[list[str]]:
    for row in element.iter(f"{TABLE}table-row"):
        cells: list[str] = []
        for cell in row.iterchildren(f"{TABLE}table-cell", f"{TABLE}covered-table-cell"):
            repeat = min(_repeat(cell, "columns"), LONGEST_REPEAT)
            cells += ["\n".join(_inline(part, boxes) for part in cell)] * repeat
        yield cells


def _inline(element: Any, boxes: list[Any]) -> str:
    """The text of an element with everything in it but what is drawn, which goes to `boxes`; a note or a comment in
    brackets."""
    if not isinstance(element.tag, str) or element.tag in UNSEEN:
        return ""
    if element.tag.startswith(DRAW) and element.tag != f"{DRAW}a":
        boxes.append(element)
        return ""
    if element.tag == f"{TEXT}s":
        return " " * min(int(element.get(f"{TEXT}c") or 1), LONGEST_REPEAT)
    if element.tag in (f"{TEXT}tab", f"{TEXT}line-break"):
        return "\t" if element.tag == f"{TEXT}tab" else "\n"
    pieces = [element.text or "", *(piece for child in element for piece in (_inline(child, boxes), child.tail or ""))]
    if element.tag in (f"{TEXT}note", ANNOTATION):
        return f" [{' '.join(' '.join(pieces).split())}]"
    return "".join(pieces)
