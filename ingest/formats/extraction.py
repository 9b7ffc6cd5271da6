"""What kreuzberg, a document reader written in Rust, does for us: PDF, RTF, HTML → Markdown, and OCR."""

import os
import re
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from ingest.decode import clean
from ingest.document import LoadedDocument, Protected, Unreadable
from ingest.formats.assembly import table
from ingest.formats.text import markdown_headings

ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
RULE = re.compile(r"\|(?: *:?-+:? *\|)+")
CELL = re.compile(r"(?<!\\)\|")
MARKDOWN_TABLE = re.compile(rf"^\|.*\|\n{RULE.pattern}(?:\n\|.*\|)*$", re.MULTILINE)
TESSDATA = ("/usr/share/tesseract-ocr/5/tessdata", "/usr/share/tesseract-ocr/4.00/tessdata", "/usr/share/tessdata")

RECOGNISED_DPI = 300
"""What tesseract is made for: https://tesseract-ocr.github.io/tessdoc/ImproveQuality.html#rescaling"""


def extract(raw: bytes, mime: str, *, passwords: tuple[str, ...] = (), annotations: bool = False, **config: Any) -> Any:
    """Kreuzberg's result in Markdown, with pages and, if wanted, a PDF's annotations; without its cache folder in the
    current directory, without OCR unless `config` asks for it. Raises Unreadable."""
    from kreuzberg import ExtractionConfig, KreuzbergError, PageConfig, PdfConfig, extract_bytes_sync

    settings: dict[str, Any] = {"output_format": "markdown", "use_cache": False, "disable_ocr": True} | config
    pages, pdf = PageConfig(extract_pages=True), PdfConfig(passwords=[*passwords], extract_annotations=annotations)
    try:
        return extract_bytes_sync(raw, mime, config=ExtractionConfig(pages=pages, pdf_options=pdf, **settings))
    except KreuzbergError as error:
        if "password" in str(error).lower():
            raise Protected(len(passwords)) from error
        said = ": ".join(str(error).splitlines()[0].split(": ")[:2])
        raise Unreadable(f"is broken or not what its suffix says ({said})") from error


def document(source: str, markdown: str, **rest: Any) -> LoadedDocument:
    """Take the headings of kreuzberg's markdown, then take out the backslashes it put before punctuation."""
    marked = _spelled_out(clean(markdown))
    headings, text, taken = [], "", 0
    for start, level, title in markdown_headings(marked):
        text += ESCAPED.sub(r"\1", marked[taken:start])
        headings.append((len(text), level, ESCAPED.sub(r"\1", title)))
        taken = start
    return LoadedDocument(source, text + ESCAPED.sub(r"\1", marked[taken:]), headings=tuple(headings), **rest)


def _spelled_out(markdown: str) -> str:
    """Each row of a table with its header's names."""
    return MARKDOWN_TABLE.sub(lambda match: table([_cells(line) for line in match[0].split("\n")]), markdown)


def _cells(row: str) -> list[str]:
    return CELL.split(row.strip().strip("|")) if not RULE.fullmatch(row) else []


def title_and_author(metadata: dict[str, Any]) -> dict[str, str]:
    """What kreuzberg's metadata say of them."""
    said = {"title": metadata.get("title"), "author": ", ".join(metadata.get("authors") or [])}
    return {name: " ".join(clean(value).split()) for name, value in said.items() if value and value.strip()}


def recognise(raw: bytes, mime: str) -> str:
    """The text in a picture, by OCR in all languages that tesseract has here. Raises Unreadable."""
    from kreuzberg import OcrConfig, TesseractConfig

    all_languages = "+".join(languages())
    if not all_languages:
        raise Unreadable("OCR needs tesseract and its language files: install it, or set TESSDATA_PREFIX")
    # Its tables are a guess from the columns in which words happen to stand.
    tesseract = TesseractConfig(language=all_languages, output_format="text", enable_table_detection=False)
    ocr = OcrConfig(backend="tesseract", language=all_languages, tesseract_config=tesseract)
    return clean(extract(raw, mime, disable_ocr=False, output_format="plain", ocr=ocr).content).strip()


def recognised_pictures(pictures: list[tuple[bytes, str]]) -> tuple[str, str]:
    """The text in pictures, each with its media type, and why there is none where OCR failed."""
    texts = []
    for content, mime in pictures:
        try:
            texts.append(recognise(content, mime))
        except Unreadable as error:
            return "\n\n".join(texts), f" ({error})"
    return "\n\n".join(filter(None, texts)), ""


def rendered(raw: bytes, page: int) -> bytes:
    """A page of a PDF, counted from 1, as a PNG picture. Raises Unreadable."""
    from kreuzberg import KreuzbergError, render_pdf_page

    with NamedTemporaryFile(suffix=".pdf") as file:
        file.write(raw)
        file.flush()
        try:
            return bytes(render_pdf_page(file.name, page - 1, dpi=RECOGNISED_DPI))
        except (KreuzbergError, RuntimeError, OSError, ValueError) as error:
            raise Unreadable(f"page {page} cannot be drawn: {error}") from error


def languages() -> list[str]:
    """Tesseract's languages here; kreuzberg has tesseract built in, but not its language files."""
    for folder in filter(None, (os.environ.get("TESSDATA_PREFIX"), *TESSDATA)):
        names = sorted(path.stem for path in Path(folder).glob("*.traineddata"))
        if languages := [name for name in names if name != "osd"]:
            os.environ["TESSDATA_PREFIX"] = folder
            return languages
    return []
