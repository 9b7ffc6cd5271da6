"""What was filled into the fields of a PDF form: it is no part of the pages' text, and kreuzberg does not see it."""

import logging
from collections import defaultdict
from collections.abc import Iterator
from io import BytesIO
from typing import Any

from ingest.formats.assembly import one_line

HOLDS_A_FORM = (b"/AcroForm", b"/ObjStm")
"""One of them is in the bytes of every file with a form; the second packs objects, of which the form may be one."""
UNREADABLE = "form fields cannot be read ({})"
DYNAMIC = "a form in XFA, of which only what stands on its pages is read: print it to a new PDF"
OFF, BUTTON = "/Off", "/Btn"
DEEPEST = 20


def filled_in(raw: bytes, passwords: tuple[str, ...]) -> tuple[dict[int, list[str]], tuple[str, ...]]:
    """Page, counted from 1 → `name: value` of its fields; and what is missing of them."""
    if not any(mark in raw for mark in HOLDS_A_FORM):
        return {}, ()
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it tells of each oddity that it mends
    try:
        reader = PdfReader(BytesIO(raw))
        if reader.is_encrypted:
            any(reader.decrypt(password) for password in ("", *passwords))
        form = _held(_held(reader.trailer.get("/Root")).get("/AcroForm"))
        lines = _lines(reader) if form.get("/Fields") else {}
    except (PyPdfError, LookupError, ValueError, TypeError, AttributeError, RecursionError, OSError) as error:
        return {}, (UNREADABLE.format(type(error).__name__),)
    return lines, (DYNAMIC,) if "/XFA" in form and not lines else ()


def _lines(reader: Any) -> dict[int, list[str]]:
    found: dict[int, dict[str, None]] = defaultdict(dict)
    for number, page in enumerate(reader.pages, 1):
        for annotation in _held(page.get("/Annots")) or ():
            field = _held(annotation)
            if field.get("/Subtype") == "/Widget" and (line := _line(field)):
                found[number][line] = None  # the buttons of one choice are one field
    return {number: list(lines) for number, lines in found.items()}


def _line(field: Any) -> str:
    value = _inherited(field, "/V")
    texts = [_text(one) for one in value] if isinstance(value, list) else [_text(value)]
    if _inherited(field, "/FT") == BUTTON:
        texts = [text.removeprefix("/") for text in texts if text != OFF]
    shown = one_line(", ".join(filter(None, texts)))
    name = one_line(_text(_inherited(field, "/TU")) or ".".join(reversed(list(_names(field)))))
    return f"{name}: {shown}" if name and shown else shown


def _names(field: Any) -> Iterator[str]:
    """Its own name, then those of the fields it is part of."""
    for one in _up(field):
        if name := _text(_held(one.get("/T"))):
            yield name


def _inherited(field: Any, key: str) -> Any:
    return next((value for one in _up(field) if (value := _held(one.get(key)))), None)


def _up(field: Any) -> Iterator[Any]:
    for _ in range(DEEPEST):
        yield field
        field = _held(field.get("/Parent"))
        if not field:
            return


def _held(value: Any) -> Any:
    """The object that a reference leads to; an empty dict for none."""
    found = value.get_object() if hasattr(value, "get_object") else value
    return {} if found is None else found


def _text(value: Any) -> str:
    """A text, also a long one, which is a stream; bytes that are no text of PDF's are none."""
    held = _held(value)
    if hasattr(held, "get_data"):
        held = held.get_data().decode("utf-8", "backslashreplace")
    return held if isinstance(held, str) else ""
