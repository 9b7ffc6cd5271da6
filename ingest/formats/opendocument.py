"""OpenDocument text and slides: the content in its order, headers and footers once, notes where they are called."""

from collections.abc import Iterator
from io import BytesIO
from typing import Any
from zipfile import BadZipFile, ZipFile

from ingest.document import LoadedDocument, LoadOptions, Unreadable
from ingest.formats.archive import Allowance
from ingest.formats.assembly import Assembly, table

NAMES = "{urn:oasis:names:tc:opendocument:xmlns:%s:1.0}"
TEXT, TABLE, DRAW, OFFICE, STYLE = (NAMES % name for name in ("text", "table", "drawing", "office", "style"))
DUBLIN_CORE = "{http://purl.org/dc/elements/1.1/}"
UNSEEN = {f"{TEXT}tracked-changes", f"{TEXT}note-citation", f"{TEXT}sequence-decls", f"{DUBLIN_CORE}date"}
LONGEST_REPEAT = 100


def read_text(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """An .odt."""
    content, styles, metadata = _parts(raw, options)
    parts = Assembly()
    for text in _margins(styles, "header"):
        parts.block(text)
    _add(content.find(f"{OFFICE}body"), parts)
    for text in _margins(styles, "footer"):
        parts.block(text)
    return parts.document(source, metadata=metadata)


def read_slides(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """An .odp, a place for each slide."""
    content, _, metadata = _parts(raw, options)
    parts = Assembly("slide")
    for number, page in enumerate(content.iter(f"{DRAW}page"), 1):
        parts.place(number)
        _add(page, parts)
    return parts.document(source, metadata=metadata)


def _parts(raw: bytes, options: LoadOptions) -> tuple[Any, Any, dict[str, str]]:
    """The roots of the content and of the styles, and the metadata."""
    from lxml import etree

    allowance = Allowance(options)
    try:
        with ZipFile(BytesIO(raw)) as package:
            names = [name for name in ("content.xml", "styles.xml", "meta.xml") if name in package.namelist()]
            if "META-INF/manifest.xml" in package.namelist() and b"encryption-data" in package.read(
                "META-INF/manifest.xml"
            ):
                raise Unreadable(
                    "is protected by a password, and such OpenDocument files are not opened: save it without"
                )
            roots = {}
            for name in names:
                with package.open(name) as stream:
                    roots[name] = etree.fromstring(allowance.read(stream))
        content = roots["content.xml"]
    except (BadZipFile, KeyError, etree.XMLSyntaxError) as error:
        raise Unreadable(f"is broken or not what its suffix says ({error})") from error
    return content, roots.get("styles.xml"), _metadata(roots.get("meta.xml"))


def _metadata(root: Any) -> dict[str, str]:
    if root is None:
        return {}
    said = {"title": root.find(f".//{DUBLIN_CORE}title"), "author": root.find(f".//{DUBLIN_CORE}creator")}
    return {name: one.text.strip() for name, one in said.items() if one is not None and (one.text or "").strip()}


def _margins(styles: Any, kind: str) -> list[str]:
    """The distinct texts of all headers or footers."""
    found = [] if styles is None else [one for one in styles.iter() if _is_margin(one, kind)]
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
