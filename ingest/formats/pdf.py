"""PDF: the text of each page, with ligatures and hyphenated line ends mended, then its notes and what is filled into
its form; OCR for pages that are pictures."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ingest.document import LoadedDocument, LoadOptions, Unreadable
from ingest.formats.assembly import Assembly
from ingest.formats.extraction import ESCAPED, extract, recognise, rendered, title_and_author
from ingest.formats.form import filled_in
from ingest.formats.text import markdown_headings
from ingest.formats.typesetting import readable

PDF = "application/pdf"
SOFT_HYPHENATED = re.compile("\u00ad\\n")
# A hyphen before a capital or a digit is one of the word's own: "Bus-\nTicket", "COVID-\n19". Pdfium, which joins such
# lines, writes U+0002 for the hyphen.
HYPHENATED = re.compile(r"(?<=[^\W\d_])(?:[-\u2010]\n|\x02\s*)(?=(?P<first>[^\W\d_]))")


def read_pdf(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """One place for each page that has text; the others are a problem of the document."""
    result = extract(raw, PDF, passwords=options.passwords, annotations=True)
    texts = {page["page_number"]: mended(page["content"]) for page in result.pages}
    empty = [number for number, text in texts.items() if not text]
    why = ""
    if empty and options.ocr:
        recognised, why = _recognised(raw, empty)
        texts |= recognised
        empty = [number for number in empty if not texts[number]]
    fields, missing = filled_in(raw, options.passwords)
    parts = Assembly("page")
    for number, text in sorted(texts.items()):
        parts.place(number)
        for block in (text, *_notes(result.annotations, number), "\n".join(fields.get(number, []))):
            parts.block(block)
    problems = (f"pages without text: {', '.join(map(str, empty))}{why}",) if empty else ()
    about = title_and_author(result.metadata)
    document = parts.document(source, problems=(*problems, *missing), metadata=about)
    return replace(document, headings=tuple(_headings(readable(result.content), document.text)))


def _notes(annotations: Iterable[Any] | None, page: int) -> Iterator[str]:
    """What was written onto a page or beside it: sticky notes, free text, comments on what is marked."""
    for one in annotations or ():
        if one.page_number == page and one.annotation_type != "link":
            yield one.content or ""


def _headings(markdown: str, text: str) -> Iterator[tuple[int, int, str]]:
    """The headings that kreuzberg made out by the size of their letters, where they are a line of the pages' text."""
    lines, searched = f"\n{text}\n", 0
    for _, level, title in markdown_headings(markdown):
        title = ESCAPED.sub(r"\1", title)
        at = lines.find(f"\n{title}\n", searched)
        if at >= 0:
            yield at, level, title
            searched = at + len(title)


def _recognised(raw: bytes, pages: list[int]) -> tuple[dict[int, str], str]:
    """The text of pages that are pictures, and why there is none for those that are missing."""
    texts = {}
    for page in pages:
        try:
            texts[page] = recognise(rendered(raw, page), "image/png")
        except Unreadable as error:
            return texts, f" ({error})"
    return texts, ""


def mended(text: str) -> str:
    """The text without ligatures and without hyphens that only a line's end put into a word."""
    text = readable(SOFT_HYPHENATED.sub("", text))
    text = HYPHENATED.sub(lambda match: "" if match["first"].islower() else match[0], text)
    return text.replace("\x02", "-").strip()
