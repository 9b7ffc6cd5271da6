import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import docx
import pptx
import pypdf
import pytest
from PIL import Image, ImageDraw

from ingest.formats import extraction
from tests.ingest.pdf import pdf

# Tesseract is a program of the system's, which `make install` cannot bring; CI installs it, and never skips.
with_tesseract = pytest.mark.skipif(
    not extraction.languages() and "CI" not in os.environ, reason="tesseract's language files are not installed"
)


def picture(kind: str) -> bytes:
    """A scan of two lines."""
    image, file = Image.new("RGB", (1240, 400), "white"), BytesIO()
    ImageDraw.Draw(image).text((100, 80), "Annual leave is 25 days\nfor every employee.", fill="black", font_size=48)
    image.save(file, kind, resolution=150)
    return file.getvalue()


def scan() -> bytes:
    """A PDF of a page of text, a picture and an empty page."""
    writer, file = pypdf.PdfWriter(), BytesIO()
    for part in (pdf("first"), picture("PDF"), pdf("")):
        writer.append(BytesIO(part))
    writer.write(file)
    return file.getvalue()


@pytest.mark.parametrize("name", ["a.png", "a.JPG", "a.tiff"])
def test_a_picture_without_ocr_says_what_reads_it(failure: Callable, name: str) -> None:
    kind = {"png": "PNG", "JPG": "JPEG", "tiff": "TIFF"}[name[2:]]
    assert failure(name, picture(kind)) == (
        "is a picture without a text layer: read it with --ocr, or leave it out with --exclude"
    )


def test_without_tesseract_ocr_says_what_it_needs(
    failure: Callable, read: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(extraction, "TESSDATA", ())
    monkeypatch.setenv("TESSDATA_PREFIX", str(tmp_path.parent))
    needs = "OCR needs tesseract and its language files: install it, or set TESSDATA_PREFIX"
    assert failure("a.png", picture("PNG"), ocr=True) == needs
    assert read("a.pdf", scan(), ocr=True).problems == (f"pages without text: 2, 3 ({needs})",)


@with_tesseract
@pytest.mark.parametrize(("name", "kind"), [("a.png", "PNG"), ("a.jpg", "JPEG"), ("a.tif", "TIFF"), ("a.webp", "WEBP")])
def test_the_text_of_a_picture_is_read_with_ocr(read: Callable, name: str, kind: str) -> None:
    assert read(name, picture(kind), ocr=True).text == "Annual leave is 25 days\nfor every employee."


@with_tesseract
def test_pages_that_are_pictures_are_read_with_ocr_in_their_place(read: Callable) -> None:
    document = read("a.pdf", scan(), ocr=True)
    assert document.text == "first\n\nAnnual leave is 25 days\nfor every employee."
    assert document.pages == ((0, 1), (7, 2))
    assert document.problems == ("pages without text: 3",)


def presentation() -> bytes:
    """A slide of a picture only."""
    written, file = pptx.Presentation(), BytesIO()
    written.slides.add_slide(written.slide_layouts[6]).shapes.add_picture(BytesIO(picture("PNG")), 0, 0)
    written.save(file)
    return file.getvalue()


def word() -> bytes:
    """A text document of a picture only."""
    written, file = docx.Document(), BytesIO()
    written.add_picture(BytesIO(picture("JPEG")))
    written.save(file)
    return file.getvalue()


@with_tesseract
@pytest.mark.parametrize(("name", "make"), [("a.pptx", presentation), ("a.docx", word)])
def test_pictures_in_office_files_are_read_with_ocr(read: Callable, name: str, make: Callable) -> None:
    document = read(name, make(), ocr=True)
    assert document.text == "Annual leave is 25 days\nfor every employee."
    assert document.problems == ()


@pytest.mark.parametrize(
    ("name", "make", "what"),
    [
        ("a.pptx", presentation, "slides of pictures without text: 1"),
        ("a.docx", word, "pictures without text: 1"),
        ("a.pdf", lambda: picture("PDF"), "pages without text: 1"),
    ],
)
def test_an_office_file_of_pictures_only_is_said_to_be_one(failure: Callable, name: str, make: Callable, what) -> None:
    assert failure(name, make()) == f"no text ({what})"
