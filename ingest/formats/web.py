"""HTML pages, without the menus and footers that surround their text, and EPUB books, which are made of pages."""

import re
from collections.abc import Iterator
from io import BytesIO
from posixpath import dirname, join, normpath
from typing import Any
from urllib.parse import unquote
from zipfile import BadZipFile, ZipFile

from ingest.decode import decode
from ingest.document import LoadedDocument, LoadOptions, Unreadable
from ingest.formats.archive import Allowance
from ingest.formats.assembly import Assembly, table
from ingest.formats.extraction import document, extract

DECLARED = re.compile(rb"<(?:meta|\?xml)[^>]*?(?:charset|encoding)\s*=\s*[\"']?\s*([\w:.-]+)", re.IGNORECASE)
UNSEEN = "//head|//script|//style|//template|//svg|//comment()|//processing-instruction()"
ARTICLE = "ancestor-or-self::main or ancestor-or-self::article or ancestor-or-self::*[@role='main']"
AROUND = (
    f"//*[self::nav or self::footer or @role='navigation' or @role='contentinfo' or @role='search'][not({ARTICLE})]"
)
LISTS = f"//*[self::ul or self::ol or self::div or self::p][.//a][not({ARTICLE})]"
MENU_LINKS, MENU_SHARE, MENU_LABEL = 3, 0.9, 30
"""A block is a menu when it has that many links, that share of its text is links, and they are that short."""
CONTAINER = "{urn:oasis:names:tc:opendocument:xmlns:container}rootfile"
OPF = "{http://www.idpf.org/2007/opf}"
DUBLIN_CORE = "{http://purl.org/dc/elements/1.1/}"


def read_html(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """The page's text, in the encoding that it declares unless it is UTF-8."""
    page = _page(raw)
    title = " ".join("".join(page.xpath("(//title)[1]//text()")).split()) if page is not None else ""
    metadata = {"title": title} if title else {}
    return document(source, _markdown(page) if page is not None else "", metadata=metadata)


def read_epub(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """The book's chapters in reading order."""
    from lxml import etree

    try:
        with ZipFile(BytesIO(raw)) as book:
            allowance = Allowance(options)
            (package_path, *_) = [
                one.get("full-path")
                for one in etree.fromstring(_part(book, "META-INF/container.xml", allowance)).iter(CONTAINER)
            ]
            package = etree.fromstring(_part(book, package_path, allowance))
            chapters = [_part(book, path, allowance) for path in _spine(package, dirname(package_path))]
    except (BadZipFile, KeyError, ValueError, etree.XMLSyntaxError) as error:
        raise Unreadable(f"is broken or not what its suffix says ({error})") from error
    parts = Assembly()
    for chapter in chapters:
        if (page := _page(chapter)) is not None:
            _add(parts, document(source, _markdown(page)))
    return parts.document(source, metadata=_metadata(package))


def text_of_html(raw: bytes) -> str:
    """The text of a page as a whole, for one that is part of something else."""
    page = _page(raw)
    return document("", _markdown(page)).text.strip() if page is not None else ""


def _page(raw: bytes) -> Any:
    """The parsed page, without its head's and its scripts' content; None for one without any element."""
    from lxml import etree

    declared = DECLARED.search(raw[:4096])
    text = decode(raw, declared=declared and declared[1].decode("ascii"))
    if not text.strip():
        return None
    return etree.fromstring(text.encode(), etree.HTMLParser(encoding="utf-8", huge_tree=True))


def _markdown(page: Any) -> str:
    from lxml import etree

    whole = _text(page)
    for element in page.xpath(UNSEEN):
        _replace(element, " " if isinstance(element.tag, str) else "")
    for picture in page.xpath("//img"):
        _replace(picture, picture.get("alt", ""))
    for grid in page.xpath("//table[not(.//table)]"):
        _spell_out(grid)
    body = etree.tostring(page, encoding="unicode", method="html")
    for element in [*page.xpath(AROUND), *filter(_is_menu, page.xpath(LISTS))]:
        _replace(element, " ")
    if _text(page) or not whole:
        body = etree.tostring(page, encoding="unicode", method="html")
    return extract(body.encode(), "text/html", html_options=_keep_all()).content


def _keep_all() -> dict[str, Any]:
    """We have taken out what is around the text; kreuzberg's own way would take asides and forms out of it too."""
    return {"extract_metadata": False, "preprocessing": {"enabled": False, "remove_navigation": False}}


def _is_menu(element: Any) -> bool:
    """Whether it is short links and hardly anything else."""
    labels = [_letters("".join(link.itertext())) for link in element.iter("a")]
    linked = sum(labels)
    is_short = linked <= MENU_LABEL * len(labels)
    return len(labels) >= MENU_LINKS and is_short and linked >= MENU_SHARE * _letters(_text(element))


def _letters(text: str) -> int:
    return sum(map(str.isalnum, text))


def _text(element: Any) -> str:
    return " ".join("".join(element.xpath(".//text()[not(ancestor::script or ancestor::style)]")).split())


def _replace(element: Any, text: str) -> None:
    """Put text in an element's place; what follows it stays."""
    parent, after = element.getparent(), text + (element.tail or "")
    if parent is None:
        return
    before = element.getprevious()
    if before is not None:
        before.tail = (before.tail or "") + after
    else:
        parent.text = (parent.text or "") + after
    parent.remove(element)


def _spell_out(grid: Any) -> None:
    """Make each row of a table a paragraph with the header's names."""
    from lxml import etree

    rows = [["".join(cell.itertext()) for cell in row.iter("th", "td")] for row in grid.iter("tr")]
    if len(rows) < 2 or max(map(len, rows)) < 2:
        return
    caption = [element for element in grid if element.tag == "caption"]
    for child in grid:
        grid.remove(child)
    grid.tag, grid.text = "div", ""
    for element in caption:
        element.tag = "p"
    grid.extend(caption)
    for line in table(rows).split("\n"):
        etree.SubElement(grid, "p").text = line


def _part(book: ZipFile, path: str, allowance: Allowance) -> bytes:
    with book.open(path) as stream:
        return allowance.read(stream)


def _spine(package: Any, folder: str) -> Iterator[str]:
    """Paths of the pages in reading order."""
    pages = {item.get("id"): unquote(item.get("href", "")) for item in package.iter(f"{OPF}item")}
    for reference in package.iter(f"{OPF}itemref"):
        if href := pages.get(reference.get("idref")):
            yield normpath(join(folder, href))


def _metadata(package: Any) -> dict[str, str]:
    said = {"title": package.find(f".//{DUBLIN_CORE}title"), "author": package.find(f".//{DUBLIN_CORE}creator")}
    return {name: one.text.strip() for name, one in said.items() if one is not None and (one.text or "").strip()}


def _add(parts: Assembly, chapter: LoadedDocument) -> None:
    taken = 0
    for start, level, title in chapter.headings:
        parts.block(chapter.text[taken:start])
        parts.heading(level, title)
        taken = start + len(chapter.text[start:].split("\n", 1)[0])
    parts.block(chapter.text[taken:])
