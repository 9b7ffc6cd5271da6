"""OpenDocument text and slides: the content in its order, headers and footers once, notes where they are called."""

from collections.abc import Iterator
from typing import Any

from ingest.document import LoadedDocument, LoadOptions, Unreadable
from ingest.formats.assembly import Assembly, table
from ingest.formats.package import Package

NAMES = "{urn:oasis:names:tc:opendocument:xmlns:%s:1.0}"
TEXT, TABLE, DRAW, OFFICE, STYLE = (NAMES % name for name in ("text", "table", "drawing", "office", "style"))
DUBLIN_CORE = "{http://purl.org/dc/elements/1.1/}"
UNSEEN = {f"{TEXT}tracked-changes", f"{TEXT}note-citation", f"{TEXT}sequence-decls", f"{DUBLIN_CORE}date"}
LONGEST_REPEAT = 100


def read_text(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """An .odt."""
    package, parts = _opened(raw, options), Assembly()
    styles = package.root("styles.xml")
    for text in _margins(styles, "header"):
        parts.block(text)
    _add(package.root("content.xml").find(f"{OFFICE}body"), parts)
    for text in _margins(styles, "footer"):
        parts.block(text)
    return parts.document(source, metadata=package.metadata("meta.xml"))


def read_slides(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """An .odp, a place for each slide."""
    package, parts = _opened(raw, options), Assembly("slide")
    for number, page in enumerate(package.root("content.xml").iter(f"{DRAW}page"), 1):
        parts.place(number)
        _add(page, parts)
    return parts.document(source, metadata=package.metadata("meta.xml"))


def _opened(raw: bytes, options: LoadOptions) -> Package:
    package = Package(raw, options)
    if b"encryption-data" in package.content("META-INF/manifest.xml"):
        raise Unreadable("is protected by a password, and such OpenDocument files are not opened: save it without")
    return package


def _margins(styles: Any, kind: str) -> list[str]:
    """The distinct texts of all headers or footers."""
    found = [one for one in styles.iter() if _is_margin(one, kind)]
    texts = [" ".join(" ".join(map(_inline, one)).split()) for one in found]
    return [text for text in dict.fromkeys(texts) if any(map(str.isalpha, text))]


def _is_margin(element: Any, kind: str) -> bool:
    return element.tag in (f"{STYLE}{kind}", f"{STYLE}{kind}-left", f"{STYLE}{kind}-first")


def _add(container: Any, parts: Assembly) -> None:
    """Blocks in their order."""
    for element in () if container is None else container:
        if element.tag == f"{TEXT}h":
            parts.heading(int(element.get(f"{TEXT}outline-level") or 1), _inline(element))
        elif element.tag == f"{TEXT}p":
            parts.block(_inline(element))
        elif element.tag == f"{TEXT}list-item":
            parts.block("- " + "\n".join(filter(str.strip, map(_inline, element))))
        elif element.tag == f"{TABLE}table":
            parts.block(table(list(_rows(element))))
        elif element.tag not in UNSEEN:
            _add(element, parts)


def _rows(element: Any) -> Iterator[list[str]]:
    for row in element.iter(f"{TABLE}table-row"):
        cells: list[str] = []
        for cell in row.iterchildren(f"{TABLE}table-cell", f"{TABLE}covered-table-cell"):
            repeat = min(int(cell.get(f"{TABLE}number-columns-repeated") or 1), LONGEST_REPEAT)
            cells += ["\n".join(map(_inline, cell))] * repeat
        yield cells


def _inline(element: Any) -> str:
    """The text of an element with everything in it; a note or a comment in brackets."""
    if not isinstance(element.tag, str) or element.tag in UNSEEN:
        return ""
    if element.tag == f"{TEXT}s":
        return " " * min(int(element.get(f"{TEXT}c") or 1), LONGEST_REPEAT)
    if element.tag in (f"{TEXT}tab", f"{TEXT}line-break"):
        return "\t" if element.tag == f"{TEXT}tab" else "\n"
    pieces = [element.text or "", *(piece for child in element for piece in (_inline(child), child.tail or ""))]
    if element.tag in (f"{TEXT}note", f"{OFFICE}annotation"):
        return f" [{' '.join(' '.join(pieces).split())}]"
    return "".join(pieces)
