"""Word: the body in its order, with text boxes, notes and comments where they are called, then charts and diagrams;
headers and footers once."""

import re
from collections.abc import Iterator
from mimetypes import guess_type
from typing import Any

from ingest.document import LoadedDocument, LoadOptions, Unreadable
from ingest.formats import drawing
from ingest.formats.assembly import WIDEST, Assembly, table
from ingest.formats.extraction import document, extract, recognised_pictures, title_and_author
from ingest.formats.package import Package
from ingest.formats.typesetting import without_ligatures

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
MC = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
MATH_TEXT = "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"
CHARACTERS = {f"{W}tab": "\t", f"{W}br": "\n", f"{W}cr": "\n", f"{W}noBreakHyphen": "-"}
# A text box is written twice, for new and for old readers; deleted text and a moved text's old place are gone.
UNSEEN = {f"{MC}Fallback", f"{W}del", f"{W}moveFrom", f"{W}instrText", f"{W}delText", f"{W}pPr", f"{W}rPr"}
HEADING_STYLE = re.compile(r"(?:heading|titel|überschrift|titre|título|标题|標題|見出し|제목) ?([1-9])", re.IGNORECASE)
NOTES = {f"{W}footnoteReference": "footnotes", f"{W}endnoteReference": "endnotes", f"{W}commentReference": "comments"}


def read_docx(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """A .docx with everything in it that is text."""
    package = Package(raw, options)
    (main, *_) = package.parts("", "officeDocument") or ["word/document.xml"]
    notes = {kind: _notes(package, main, kind) for kind in NOTES.values()}
    story = _Story(Assembly(), _heading_levels(package, main), notes)
    story.add(package.root(main).find(f"{W}body"))
    for text in drawing.related(package, main):
        story.parts.block(text)
    # Behind the text, where they do not come between its beginning and its first heading.
    for text in (*_margins(package, main, "header"), *_margins(package, main, "footer")):
        story.parts.block(text)
    pictures = [(package.content(part), _media_type(part)) for part in package.parts(main, "image")]
    recognised, why = recognised_pictures(pictures) if options.ocr else ("", "")
    story.parts.block(recognised)
    silent = pictures and not story.parts.has_text
    problems = (f"pictures without text: {len(pictures)}{why}",) if silent else ()
    return story.parts.document(source, problems=problems, metadata=package.metadata())


def read_rtf(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """Rich text."""
    if not raw.lstrip().startswith(b"{\\rtf"):
        raise Unreadable("is broken or not what its suffix says (it does not begin as RTF)")
    result = extract(raw, "application/rtf")
    return document(source, without_ligatures(result.content), metadata=title_and_author(result.metadata))


class _Story:
    """The body being read, and the parts that it calls."""

    def __init__(self, parts: Assembly, levels: dict[str, int], notes: dict[str, dict[str, str]]) -> None:
        self.parts, self._levels, self._notes = parts, levels, notes

    def add(self, container: Any) -> None:
        """Blocks in their order."""
        for element in container:
            if element.tag == f"{W}p":
                self._paragraph(element)
            elif element.tag == f"{W}tbl":
                self.parts.block(self._table(element))
            elif element.tag in (f"{W}sdt", f"{W}sdtContent", f"{W}ins", f"{W}moveTo", f"{W}customXml", f"{W}tc"):
                self.add(element)

    def _paragraph(self, paragraph: Any) -> None:
        boxes: list[Any] = []
        text = "".join(self._runs(paragraph, boxes))
        style = paragraph.find(f"{W}pPr/{W}pStyle")
        level = self._levels.get(style.get(f"{W}val")) if style is not None else None
        if level:
            self.parts.heading(level, text)
        else:
            self.parts.block(f"- {text}" if paragraph.find(f"{W}pPr/{W}numPr") is not None and text.strip() else text)
        for box in boxes:
            self.add(box)

    def _runs(self, element: Any, boxes: list[Any]) -> Iterator[str]:
        for child in element:
            if child.tag in (f"{W}t", MATH_TEXT):
                yield child.text or ""
            elif child.tag in CHARACTERS:
                yield CHARACTERS[child.tag]
            elif child.tag in NOTES:
                yield self._notes[NOTES[child.tag]].get(child.get(f"{W}id"), "")
            elif child.tag == f"{W}txbxContent":
                boxes.append(child)
            elif child.tag not in UNSEEN:
                yield from self._runs(child, boxes)

    def _table(self, element: Any) -> str:
        rows: list[list[str]] = []
        for row in element.iterchildren(f"{W}tr"):
            line: list[str] = []
            for cell in row.iterchildren(f"{W}tc", f"{W}sdt"):
                is_continued, columns = _spans(cell)
                above = rows[-1][len(line)] if is_continued and rows and len(line) < len(rows[-1]) else ""
                line += [self._cell(cell) or above, *[""] * (columns - 1)]
            rows.append(line)
        return table(rows)

    def _cell(self, cell: Any) -> str:
        inner = _Story(Assembly(separator="\n"), {}, self._notes)
        inner.add(cell)
        return inner.parts.document("").text


def _spans(cell: Any) -> tuple[bool, int]:
    """Whether a cell goes on from the row above, and the columns it spans."""
    inner = cell if cell.tag == f"{W}tc" else cell.find(f"{W}sdtContent/{W}tc")
    if inner is None:
        return False, 1
    merged, columns = inner.find(f"{W}tcPr/{W}vMerge"), inner.find(f"{W}tcPr/{W}gridSpan")
    width = columns.get(f"{W}val", "1") if columns is not None else "1"
    is_continued = merged is not None and merged.get(f"{W}val") != "restart"
    return is_continued, min(int(width), WIDEST) if width.isdecimal() and len(width) < 6 else 1


def _heading_levels(package: Package, main: str) -> dict[str, int]:
    """Style id → level, by the style's outline level or its name, its own or that of the style it is based on."""
    styles = [style for part in package.parts(main, "styles") for style in package.root(part).iter(f"{W}style")]
    levels = {style.get(f"{W}styleId"): level for style in styles if (level := _own_level(style))}
    for style in styles:
        base = style.find(f"{W}basedOn")
        if base is not None and base.get(f"{W}val") in levels:
            levels.setdefault(style.get(f"{W}styleId"), levels[base.get(f"{W}val")])
    return levels


def _own_level(style: Any) -> int | None:
    name, outline = style.find(f"{W}name"), style.find(f"{W}pPr/{W}outlineLvl")
    called = name.get(f"{W}val", "") if name is not None else ""
    if named := HEADING_STYLE.fullmatch(called):
        return int(named[1])
    level = outline.get(f"{W}val", "") if outline is not None else ""
    if level.isdecimal() and int(level) < 9:  # nine is the level of running text
        return int(level) + 1
    return 1 if called == "Title" else None


def _notes(package: Package, main: str, kind: str) -> dict[str, str]:
    """Id → text of a footnote, an endnote or a comment, as it stands where it is called."""
    return {
        note.get(f"{W}id"): f" [{author + ': ' if (author := note.get(f'{W}author')) else ''}{text}]"
        for part in package.parts(main, kind)
        for note in package.root(part)
        if (text := " ".join(_plain(note).split()))
    }


def _margins(package: Package, main: str, kind: str) -> list[str]:
    """The distinct texts of all headers or footers; page numbers alone are none."""
    texts = [" ".join(_plain(package.root(part)).split()) for part in package.parts(main, kind)]
    return [text for text in dict.fromkeys(texts) if re.search(r"[^\W\d]", text)]


def _media_type(part: str) -> str:
    return guess_type(part)[0] or "image/png"


def _plain(element: Any) -> str:
    if element.tag in (f"{W}t", MATH_TEXT):
        return element.text or ""
    if element.tag in CHARACTERS:
        return CHARACTERS[element.tag]
    if element.tag in UNSEEN:
        return ""
    return "".join(map(_plain, element)) + ("\n" if element.tag == f"{W}p" else "")
