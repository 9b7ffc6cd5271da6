"""Pictures, which have no text but what OCR finds in them."""

from pathlib import PurePosixPath

from ingest.document import LoadedDocument, LoadOptions, Unreadable
from ingest.formats.extraction import recognise

PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp")
MIMES = {"jpg": "image/jpeg", "tif": "image/tiff"}


def read_picture(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """The text that OCR finds. Raises Unreadable without `ocr`."""
    if not options.ocr:
        raise Unreadable("is a picture without a text layer: read it with --ocr, or leave it out with --exclude")
    suffix = PurePosixPath(source.lower()).suffix[1:]
    return LoadedDocument(source, recognise(raw, MIMES.get(suffix, f"image/{suffix}")))
