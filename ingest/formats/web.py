"""HTML pages, without the menus and footers that surround their text, and EPUB books, which are made of pages."""

import re
from collections.abc import Iterator
from posixpath import dirname, join, normpath
from typing import Any
from urllib.parse import unquote

from ingest.decode import decode
from ingest.document import LoadedDocument, LoadOptions, Unreadable
from ingest.formats.article import keep_article
from ingest.formats.assembly import Assembly
from ingest.formats.extraction import document, extract
from ingest.formats.package import Package
from ingest.formats.typesetting import rejoined

DECLARED = re.compile(rb"<(?:meta|\?xml)[^>]*?(?:charset|encoding)\s*=\s*[\"']?\s*([\w:.-]+)", re.IGNORECASE)
CONTAINER = "{urn:oasis:names:tc:opendocument:xmlns:container}rootfile"
PROSE = "//text()[not(ancestor::pre or ancestor::code or ancestor::kbd or ancestor::samp or ancestor::textarea)]"
OPF = "{http://www.idpf.org/2007/opf}"


def read_html(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """The page's text, in the encoding that it declares unless it is UTF-8."""
    page = _page(raw)
    title = " ".join("".join(page.xpath("(//title)[1]//text()")).split()) if page is not None else ""
    metadata = {"title": title} if title else {}
    return document(source, _markdown(page) if page is not None else "", metadata=metadata)


def read_epub(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """The book's chapters in reading order."""
    book, parts = Package(raw, options), Assembly()
    paths = [one.get("full-path") for one in book.root("META-INF/container.xml").iter(CONTAINER)]
    if not paths:
        raise Unreadable("is broken or not what its suffix says (META-INF/container.xml names no book)")
    for path in _spine(book.root(paths[0]), dirname(paths[0])):
        if (page := _page(book.content(path))) is not None:
            _add(parts, document(source, _markdown(page)))
    return parts.document(source, metadata=book.metadata(paths[0]))


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
    parser = etree.HTMLParser(encoding="utf-8", huge_tree=True)
    page = etree.fromstring(text.encode(), parser)
    if any(error.type_name == "ERR_RESOURCE_LIMIT" for error in parser.error_log):
        raise Unreadable("is a page of more than 2,048 elements in each other, which is where its reader ends")
    return page


def _markdown(page: Any) -> str:
    from lxml import etree

    _mend(page)
    keep_article(page)
    # We have taken out what is around the text; kreuzberg's own way would take asides and forms out of it too.
    everything = {"extract_metadata": False, "preprocessing": {"enabled": False, "remove_navigation": False}}
    body = etree.tostring(page, encoding="unicode", method="html")
    return extract(body.encode(), "text/html", html_options=everything).content


def _mend(page: Any) -> None:
    """Take out what typesetting has put into words; code stays as it is written."""
    for text in page.xpath(PROSE):
        if (mended := rejoined(text)) != text:
            place = text.getparent()
            setattr(place, "tail" if text.is_tail else "text", mended)


def _spine(package: Any, folder: str) -> Iterator[str]:
    """Paths of the pages in reading order."""
    pages = {item.get("id"): unquote(item.get("href", "")) for item in package.iter(f"{OPF}item")}
    for reference in package.iter(f"{OPF}itemref"):
        if href := pages.get(reference.get("idref")):
            yield normpath(join(folder, href))


def _add(parts: Assembly, chapter: LoadedDocument) -> None:
    taken = 0
    for start, level, title in chapter.headings:
        parts.block(chapter.text[taken:start])
        parts.heading(level, title)
        taken = start + len(chapter.text[start:].split("\n", 1)[0])
    parts.block(chapter.text[taken:])
