"""What kreuzberg, a document reader written in Rust, does for us: PDF, RTF, HTML → Markdown, and OCR."""

import os
import re
from pathlib import Path
from typing import Any

from ingest.decode import clean
from ingest.document import LoadedDocument, Protected, Unreadable
from ingest.formats.text import markdown_headings

ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
TESSDATA = ("/usr/share/tesseract-ocr/5/tessdata", "/usr/share/tesseract-ocr/4.00/tessdata", "/usr/share/tessdata")


def extract(raw: bytes, mime: str, *, passwords: tuple[str, ...] = (), **config: Any) -> Any:
    """Kreuzberg's result in Markdown, with pages, without its cache folder in the current directory, without OCR
    unless `config` asks for it. Raises Unreadable."""
    from kreuzberg import ExtractionConfig, KreuzbergError, PageConfig, PdfConfig, extract_bytes_sync

    settings: dict[str, Any] = {"output_format": "markdown", "use_cache": False, "disable_ocr": True} | config
    pages, pdf = PageConfig(extract_pages=True), PdfConfig(passwords=list(passwords))
    try:
        return extract_bytes_sync(raw, mime, config=ExtractionConfig(pages=pages, pdf_options=pdf, **settings))
    except KreuzbergError as error:
        if "password" in str(error).lower():
            raise Protected(len(passwords)) from error
        said = ": ".join(str(error).splitlines()[0].split(": ")[:2])
        raise Unreadable(f"is broken or not what its suffix says ({said})") from error


def document(source: str, markdown: str, **rest: Any) -> LoadedDocument:
    """Take the headings of kreuzberg's markdown, then take out the backslashes it put before punctuation."""
    marked = clean(markdown)
    headings, text, taken = [], "", 0
    for start, level, title in markdown_headings(marked):
        text += ESCAPED.sub(r"\1", marked[taken:start])
        headings.append((len(text), level, ESCAPED.sub(r"\1", title)))
        taken = start
    return LoadedDocument(source, text + ESCAPED.sub(r"\1", marked[taken:]), headings=tuple(headings), **rest)


def title_and_author(metadata: dict[str, Any]) -> dict[str, str]:
    """What kreuzberg's metadata say of them."""
    said = {"title": metadata.get("title"), "author": ", ".join(metadata.get("authors") or [])}
    return {name: " ".join(clean(value).split()) for name, value in said.items() if value and value.strip()}


def read_picture_text(raw: bytes, mime: str, **config: Any) -> Any:
    """Kreuzberg's result with OCR in all languages that tesseract has here. Raises Unreadable."""
    from kreuzberg import OcrConfig

    languages = _languages()
    if not languages:
        raise Unreadable("OCR needs tesseract and its language files: install it, or set TESSDATA_PREFIX")
    ocr = OcrConfig(backend="tesseract", language="+".join(languages))
    return extract(raw, mime, disable_ocr=False, ocr=ocr, **config)


def _languages() -> list[str]:
    """Tesseract's languages here; kreuzberg has tesseract built in, but not its language files."""
    for folder in filter(None, (os.environ.get("TESSDATA_PREFIX"), *TESSDATA)):
        names = sorted(path.stem for path in Path(folder).glob("*.traineddata"))
        if languages := [name for name in names if name != "osd"]:
            os.environ["TESSDATA_PREFIX"] = folder
            return languages
    return []
