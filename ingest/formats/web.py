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
from ingest.formats.article import keep_article
from ingest.formats.assembly import Assembly
from ingest.formats.extraction import document, extract

DECLARED = re.compile(rb"<(?:meta|\?xml)[^>]*?(?:charset|encoding)\s*=\s*[\"']?\s*([\w:.-]+)", re.IGNORECASE)
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
    parser = etree.HTMLParser(encoding="utf-8", huge_tree=True)
    page = etree.fromstring(text.encode(), parser)
    if any(error.type_name == "ERR_RESOURCE_LIMIT" for error in parser.error_log):
        raise Unreadable("is a page of more than 2,048 elements in each other, which is where its reader ends")
    return page


def _markdown(page: Any) -> str:
    from lxml import etree

    keep_article(page)
    # We have taken out what is around the text; kreuzberg's own way would take asides and forms out of it too.
    everything = {"extract_metadata": False, "preprocessing": {"enabled": False, "remove_navigation": False}}
    body = etree.tostring(page, encoding="unicode", method="html")
    return extract(body.encode(), "text/html", html_options=everything).content


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
