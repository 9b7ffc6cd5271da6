"""PowerPoint: each slide's title, text, tables and charts, then its notes and comments."""

from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from typing import Any, TypeVar

from ingest.document import LoadedDocument, LoadOptions
from ingest.formats import drawing
from ingest.formats.assembly import Assembly, table
from ingest.formats.extraction import recognised_pictures
from ingest.formats.package import Package

A_TEXT = "{http://schemas.openxmlformats.org/drawingml/2006/main}t"
A_PARAGRAPH = "{http://schemas.openxmlformats.org/drawingml/2006/main}p"
Slide = TypeVar("Slide")
COMMENT_TEXT = "{http://schemas.openxmlformats.org/presentationml/2006/main}text"


def read_pptx(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """A .pptx, a place for each slide; slides that hold a picture and no text are a problem."""
    import pptx

    package = Package(raw, options)
    presentation = pptx.Presentation(BytesIO(package.raw))
    parts = Assembly("slide")
    problems = add_slides(
        parts,
        presentation.slides,
        add=lambda slide: bool(list(_slide(slide, parts))),
        pictures=lambda slide: list(_pictures(slide.shapes)),
        options=options,
    )
    return parts.document(source, problems=problems, metadata=package.metadata())


def add_slides(
    parts: Assembly,
    slides: Iterable[Slide],
    *,
    add: Callable[[Slide], bool],
    pictures: Callable[[Slide], list[tuple[bytes, str]]],
    options: LoadOptions,
) -> tuple[str, ...]:
    """Add each slide at a place of its own, where `add` tells whether there was text; return what is a problem."""
    silent, why = [], ""
    for number, slide in enumerate(slides, 1):
        parts.place(number)
        shown = [] if add(slide) else pictures(slide)
        recognised, reason = recognised_pictures(shown) if options.ocr else ("", "")
        parts.block(recognised)
        why = why or reason
        if shown and not recognised:
            silent.append(number)
    return (f"slides of pictures without text: {', '.join(map(str, silent))}{why}",) if silent else ()


def _slide(slide: Any, parts: Assembly) -> Iterator[str]:
    """Add the slide's text, and give it too."""
    title = slide.shapes.title
    if title is not None and title.has_text_frame and title.text_frame.text.strip():
        parts.heading(2, title.text_frame.text)
        yield title.text_frame.text
    shapes = (shape for shape in slide.shapes if title is None or shape.shape_id != title.shape_id)
    notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
    said = [*_texts(shapes), notes.text if notes is not None else "", *_related_texts(slide)]
    for text in filter(str.strip, said):
        parts.block(text.replace("\v", "\n"))
        yield text


def _texts(shapes: Any) -> Iterator[str]:
    for shape in shapes:
        if getattr(shape, "has_table", False):
            yield table([[cell.text for cell in row.cells] for row in shape.table.rows])
        elif getattr(shape, "has_chart", False):
            yield drawing.chart(shape.chart.part._element)
        elif hasattr(shape, "shapes"):
            yield from _texts(shape.shapes)
        elif shape.has_text_frame:
            yield shape.text_frame.text


def _related_texts(slide: Any) -> Iterator[str]:
    """The paragraphs of diagrams (SmartArt) and the comments, which are parts of their own."""
    from lxml import etree

    for one in slide.part.rels.values():
        kind = one.reltype.rsplit("/", 1)[-1]
        if one.is_external or kind not in ("diagramData", "comments"):
            continue
        root = etree.fromstring(one.target_part.blob)
        paragraphs = ["".join(t.text or "" for t in p.iter(A_TEXT)) for p in root.iter(A_PARAGRAPH)]
        comments = [text.text or "" for text in root.iter(COMMENT_TEXT)]
        yield "\n".join(filter(str.strip, paragraphs + comments))


def _pictures(shapes: Any) -> Iterator[tuple[bytes, str]]:
    """Content and media type of each picture."""
    for shape in shapes:
        if hasattr(shape, "shapes"):
            yield from _pictures(shape.shapes)
        elif hasattr(shape, "image"):
            yield shape.image.blob, shape.image.content_type
