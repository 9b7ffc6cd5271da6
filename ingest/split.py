"""A document → chunks that fit the embedder, cut where a reader would cut, with exact offsets."""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ingest.document import LoadedDocument

PARAGRAPH = re.compile(r"\n[ \t\u3000]*\n\s*")
LINE = re.compile(r"\n\s*")
# Chinese and Japanese sentences end without a space; closing quotes and brackets belong to the sentence they end.
SENTENCE = re.compile(r"[。！？；…]+[”’」』》）)\"']*\s*|[.!?]+[\"'”’)\]]*\s+")
WORD = re.compile(r"\s+|[，、：,]\s*")
NOT_SPACE = re.compile(r"\S")
TINY_SECTION = 30
"""Tokens: a section shorter than this goes into one chunk with what follows."""
CHARACTERS_PER_TOKEN = 8
"""A chunk's characters at most, for each token: an embedder may make one unknown token of a whole page of base64."""
TOKENISED_AT_ONCE = 1000
"""Characters at least, and four times as many at most: the tokens of 50 MB take gigabytes while they are made."""

Offsets = Callable[[str], list[tuple[int, int]]]


@dataclass(frozen=True)
class Chunk:
    """A piece of a document: `text == document.text[start:end]`."""

    text: str
    start: int
    end: int
    place: int | str | None
    """The page, slide, sheet or cell it is on; None where the document has no places."""
    line: int | None
    """Line of the file on which the chunk starts, from 1; None where the text's lines are not the file's."""
    heading: str
    """Titles down to the chunk's own, as in `Leave > Sick leave`; empty before the first heading."""
    place_kind: str = "page"
    """What `place` counts or names."""

    @property
    def page(self) -> int | None:
        """The page, for a document that has pages."""
        return self.place if self.place_kind == "page" and isinstance(self.place, int) else None


def split(document: LoadedDocument, embedder_offsets: Offsets, max_tokens: int) -> list[Chunk]:
    """Cut a document into chunks of at most `max_tokens` of the embedder's own tokens, without overlap.

    Only white space is lost between chunks. A chunk never crosses a page; before a heading of level 1 to 3 there is
    always a cut unless the section so far is tiny; otherwise the last paragraph, sentence, line or word that fits.
    """
    cutter = _Cutter(document, embedder_offsets, max_tokens)
    spans = [span for start, end in cutter.sections() for span in cutter.spans(start, end)]
    return list(_chunks(document, spans))


class _Cutter:
    """One document, tokenised once, with the places where it may be cut."""

    def __init__(self, document: LoadedDocument, offsets: Offsets, max_tokens: int) -> None:
        self.document, self.text = document, document.text
        self.offsets, self.max_tokens = offsets, max_tokens
        self.tokens = _positions(
            begun + start
            for begun, stop in _pieces(self.text)
            for start, end in offsets(self.text[begun:stop])
            if end > start
        )

    @cached_property
    def breaks(self) -> list[tuple["array[int]", float]]:
        """Where chunks may begin, best kind first, with the share of a full chunk that must come before such a cut."""
        paragraph = LINE if self.document.line_is_unit else PARAGRAPH
        kinds = [(paragraph, 0.4), (SENTENCE, 0.4), (LINE, 0.25), (WORD, 0.0)]
        return [(_positions(match.end() for match in pattern.finditer(self.text)), share) for pattern, share in kinds]

    def sections(self) -> Iterator[tuple[int, int]]:
        pages = {start for start, _ in self.document.pages}
        headings = {start for start, level, _ in self.document.headings if level <= 3}
        begun = 0
        for start in sorted(pages | headings):
            if start > begun and (start in pages or self.count(begun, start) >= TINY_SECTION):
                yield begun, start
                begun = start
        yield begun, len(self.text)

    def spans(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The chunks of one section, white space trimmed off."""
        while span := self.trimmed(start, end):
            start, limit = span[0], self.max_tokens
            stop = self.cut(start, span[1], limit)
            while (excess := self.excess(start, stop)) > 0 and stop - start > 1:
                limit = max(1, limit - excess)
                stop = max(start + 1, min(stop - 1, self.cut(start, stop, limit)))
            yield self.trimmed(start, stop) or (start, stop)
            start = stop

    def trimmed(self, start: int, end: int) -> tuple[int, int] | None:
        first = NOT_SPACE.search(self.text, start, end)
        if not first:
            return None
        while self.text[end - 1].isspace():
            end -= 1
        return first.start(), end

    def count(self, start: int, end: int) -> int:
        return bisect_left(self.tokens, end) - bisect_left(self.tokens, start)

    def excess(self, start: int, end: int) -> int:
        """Tokens above the limit when the piece is tokenised by itself; a word cut in two can make more of them."""
        if self.count(start, end) * 8 <= self.max_tokens * 7:
            return 0
        return len(self.offsets(self.text[start:end].strip())) - self.max_tokens

    def cut(self, start: int, end: int, limit: int) -> int:
        """Where the chunk that begins at `start` ends, `limit` tokens on at most."""
        furthest = min(self.after(start, limit), start + limit * CHARACTERS_PER_TOKEN)
        if furthest >= end:
            return end
        for places, share in self.breaks:
            best = places[index - 1] if (index := bisect_right(places, furthest)) else 0
            if best > start and self.count(start, best) >= share * limit:
                return best
        return max(furthest, start + 1)

    def after(self, start: int, tokens: int) -> int:
        """The position that many tokens after `start`."""
        index = bisect_left(self.tokens, start) + tokens
        return self.tokens[index] if index < len(self.tokens) else len(self.text)


def _positions(positions: Iterable[int]) -> "array[int]":
    """A quarter to a tenth of what a list takes."""
    return array("I", positions)


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """The text in whole lines: a tokenizer takes up to twice as long for a long text as for its parts. Where a line has
    no end, in whole sentences or words."""
    begun = 0
    while len(text) - begun > TOKENISED_AT_ONCE:
        stop = _piece_end(text, begun + TOKENISED_AT_ONCE, begun + 4 * TOKENISED_AT_ONCE)
        yield begun, stop
        begun = stop
    yield begun, len(text)


def _piece_end(text: str, least: int, most: int) -> int:
    """The first line's end between the two, else the first sentence's, else the first word's."""
    if most >= len(text):
        return len(text)
    found = (pattern.search(text, least - 1, most) for pattern in (LINE, SENTENCE, WORD))
    return next((match.end() for match in found if match), most)


def _chunks(document: LoadedDocument, spans: list[tuple[int, int]]) -> Iterator[Chunk]:
    headings = _Headings(document)
    line, counted = 1, 0
    for start, end in spans:
        line += document.text.count("\n", counted, start)
        counted = start
        index = bisect_right(document.pages, start, key=lambda place: place[0])
        yield Chunk(
            document.text[start:end],
            start,
            end,
            document.pages[index - 1][1] if index else None,
            line if document.has_lines else None,
            headings.path(start, end),
            document.place_kind,
        )


class _Headings:
    """The titles above each position of a document."""

    def __init__(self, document: LoadedDocument) -> None:
        self.text, self.starts = document.text, [start for start, _, _ in document.headings]
        self.paths, path = [""], dict[int, str]()
        for _, level, title in document.headings:
            path = {above: name for above, name in path.items() if above < level} | {level: title}
            self.paths.append(" > ".join(path.values()))

    def path(self, start: int, end: int) -> str:
        """The path at the chunk's first line that is not itself a heading."""
        index = bisect_left(self.starts, start)
        while index < len(self.starts) and (at := self.starts[index]) < end and not self.text[start:at].strip():
            start = at + len(self.text[at:end].split("\n", 1)[0])
            index += 1
        return self.paths[index]
