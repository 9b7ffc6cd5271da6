"""A parsed web page → the page without what surrounds its text: menus, footers, scripts, drawings."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ingest.formats.assembly import spread, table

UNSEEN = "//head|//script|//style|//template|//svg|//comment()|//processing-instruction()"
AROUND_TAGS, AROUND_ROLES = ("nav", "footer"), ("navigation", "contentinfo", "search")
ARTICLE_TAGS = ("main", "article")
MENU_TAGS = ("ul", "ol", "div", "p")
MENU_LINKS, MENU_SHARE, MENU_LABEL = 3, 0.9, 30
"""A block is a menu when it has that many links, that share of its letters is links, and they are that short."""
ARRANGED = ("h1", "h2", "h3", "h4", "h5", "h6", "pre")
TABLE_PARTS = ("thead", "tbody", "tfoot", "tr", "td", "th", "caption")
DEEPEST = 48
"""Elements in elements: kreuzberg loses, without a word, what lies more than some 60 deep."""


@dataclass
class Measure:
    """Letters of an element, letters of the links in it, and how many links."""

    letters: int = 0
    linked: int = 0
    links: int = 0


def keep_article(page: Any) -> None:
    """Take out of the page what is not its text. A page that is nothing else keeps it."""
    for element in page.xpath(UNSEEN):
        _replace(element, " " if isinstance(element.tag, str) else "")
    for picture in page.xpath("//img"):
        _replace(picture, picture.get("alt", ""))
    around = list(_around(page))
    kept = _measures(page)[page].letters - sum(_measures(element)[element].letters for element in around)
    for element in around if kept else ():
        _replace(element, " ")
    grids = page.xpath("//table")
    holding = {next(grid.iterancestors("table"), None) for grid in grids}
    for grid in reversed(grids):  # an inner one's rows are none any more when the outer one is looked at
        _lay_out(grid, [] if grid in holding else _rows(grid))
    _flatten(page)


def _around(page: Any) -> Iterator[Any]:
    """Outermost elements that surround an article, in no article."""
    measures = _measures(page)
    passed: set[Any] = set()
    for element in measures:
        if element.getparent() in passed or element.tag in ARTICLE_TAGS or element.get("role") == "main":
            passed.add(element)
        elif element.tag in AROUND_TAGS or element.get("role") in AROUND_ROLES or _is_menu(element, measures[element]):
            passed.add(element)
            yield element


def _measures(page: Any) -> dict[Any, Measure]:
    """Each element with its measure, in the order of the page; computed from the innermost outwards."""
    measures = {element: Measure() for element in page.iter() if isinstance(element.tag, str)}
    for element in reversed(list(measures)):
        measure = measures[element]
        measure.letters += _letters(element.text)
        if element.tag == "a":
            measure.linked, measure.links = measure.letters, measure.links + 1
        parent = measures.get(element.getparent()) if element is not page else None
        if parent is not None:
            parent.letters += measure.letters + _letters(element.tail)
            parent.linked += measure.linked
            parent.links += measure.links
    return measures


def _is_menu(element: Any, measure: Measure) -> bool:
    is_short = measure.linked <= MENU_LABEL * measure.links
    is_links = measure.links >= MENU_LINKS and measure.linked >= MENU_SHARE * measure.letters
    return element.tag in MENU_TAGS and is_links and is_short


def _letters(text: str | None) -> int:
    return sum(map(str.isalnum, text or ""))


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


def _rows(grid: Any) -> list[list[str]]:
    """The rows of a table; none when its cells hold parts of a page."""
    arranges = next(grid.iter(*ARRANGED), None) is not None
    rows = spread([[_cell(cell) for cell in row.iter("th", "td")] for row in grid.iter("tr")])
    return rows if len(rows) > 1 and max(map(len, rows)) > 1 and not arranges else []


def _cell(cell: Any) -> tuple[str, int, int]:
    spans = (cell.get(name, "1").strip() for name in ("colspan", "rowspan"))
    columns, rows = (int(span) if span.isdecimal() and len(span) < 6 else 1 for span in spans)
    return "".join(cell.itertext()), columns, rows


def _lay_out(grid: Any, rows: list[list[str]]) -> None:
    """Make each row of a table a paragraph with the header's names, or of a table that only arranges a page blocks."""
    from lxml import etree

    if not rows:
        for element in [grid, *grid.iter(*TABLE_PARTS)]:
            element.tag = "div"
        return
    caption = [element for element in grid if element.tag == "caption"]
    for child in list(grid):
        grid.remove(child)
    grid.tag, grid.text = "div", ""
    for element in caption:
        element.tag = "p"
    grid.extend(caption)
    for line in table(rows).split("\n"):
        etree.SubElement(grid, "p").text = line


def _flatten(page: Any) -> None:
    """Make of each element that lies too deep the lines of its text."""
    from lxml import etree

    level = [page]
    for _ in range(DEEPEST):
        level = [child for element in level for child in element]
    for element in level:
        first, *others = [text for text in map(str.strip, element.itertext()) if text] or [""]
        for child in list(element):
            element.remove(child)
        element.text = first
        for text in others:
            etree.SubElement(element, "br").tail = text
