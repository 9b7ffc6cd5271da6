"""What cannot be read, with the message that its user gets: `python -m tests.ingest.formats.unreadable` prints it."""

import zipfile
from collections.abc import Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import docx
import openpyxl
import pypdf
from msoffcrypto.format.ooxml import OOXMLFile
from pypdf.generic import TextStringObject

from ingest.document import FailedSource, LoadOptions
from ingest.load import load_all
from ingest.prepare import FileEnd, Job, Recipe
from ingest.workers import Workers
from tests.ingest.formats import locked
from tests.ingest.formats.outlook import compound, message
from tests.ingest.formats.test_archive import encrypted, nested, tarred, zipped
from tests.ingest.formats.test_opendocument import SECRET, package
from tests.ingest.formats.test_pdf import form, pages
from tests.ingest.formats.test_picture import picture, presentation, scan, word
from tests.ingest.formats.test_spreadsheet import old_workbook
from tests.ingest.pdf import pdf
from tests.ingest.troublesome import Troublesome

Case = tuple[str, str, bytes, dict[str, Any]]
TEXT = "员工每年有十二天年假。"
TORN = b"PK\x03\x04 torn"
TROUBLES = {
    "a reader that crashes": "it crashes",
    "a file that is never read to its end": "it hangs",
    "a file that takes too much memory": "it takes memory",
    "a reader with a fault": "it fails",
}


def cases() -> Iterator[Case]:
    """Kind, name, content and options of a file of each kind."""
    yield from ((kind, name, content, {}) for kind, name, content in [*_texts(), *_broken(), *_partly()])
    yield from _behind_a_password()
    yield from _packed()


def _texts() -> Iterator[tuple[str, str, bytes]]:
    yield "a format that is not supported", "a.mp3", b"ID3"
    yield "Word or PowerPoint 97 to 2003", "a.doc", old_workbook()
    yield "… under the suffix of today's", "a.docx", old_workbook()
    yield "an empty file", "a.txt", b""
    yield "an empty workbook", "a.xlsx", _saved(openpyxl.Workbook())
    yield "binary data as text", "a.txt", bytes(range(256)) * 2
    yield "UTF-8 with a broken character", "a.txt", f"{TEXT}{TEXT}".encode()[:-4] + b"\xe5" + TEXT.encode()
    yield "text that its byte order mark contradicts", "a.txt", b"\xef\xbb\xbfGr\xf6\xdfe"
    yield "a picture", "a.png", picture("PNG")


def _broken() -> Iterator[tuple[str, str, bytes]]:
    yield "a broken PDF", "a.pdf", b"%PDF-1.4 torn"
    yield "a broken Office or OpenDocument file, book or ZIP archive", "a.docx", TORN
    yield "a broken workbook", "a.xlsx", zipped({"a.xml": ""})
    yield "no RTF", "a.rtf", b"text"
    yield "no JSON", "a.json", b"{"
    yield "no XML", "a.xml", b"<a><b></a>"
    yield "no notebook", "a.ipynb", b"[]"
    yield "a broken Outlook message", "a.msg", b"torn"
    yield "a page of too many elements in each other", "a.html", ("<div>" * 5000 + TEXT).encode()
    yield "a torn tar archive", "a.tar", tarred({"a.txt": b"x" * 5000})[:3000]
    yield "a broken compressed file", "a.gz", b"\x1f\x8b torn"


def _partly() -> Iterator[tuple[str, str, bytes]]:
    """Without text, or with only a part of it."""
    yield "a PDF of scans", "a.pdf", pdf("", "")
    yield "slides of pictures", "a.pptx", presentation()
    yield "a text document of pictures", "a.docx", word()
    yield "some scanned pages in a PDF", "a.pdf", scan()
    yield "a PDF form in XFA", "a.pdf", form(pages("first"), XFA=TextStringObject("<xdp/>"))
    yield "lines that are no JSON", "a.jsonl", b'{"a": 1}\ntorn\n'
    yield "an Outlook message in RTF only", "a.msg", compound(message({"0037": TEXT}) | {"__substg1.0_10090102": b"x"})


def _behind_a_password() -> Iterator[Case]:
    plain, office, writer = docx.Document(), BytesIO(), pypdf.PdfWriter(clone_from=BytesIO(pdf("secret")))
    plain.add_paragraph(TEXT)
    OOXMLFile(BytesIO(_saved(plain))).encrypt("pass", office)
    writer.encrypt("pass", algorithm="RC4-128")
    yield "Word, Excel, PowerPoint with a password", "a.docx", office.getvalue(), {}
    yield "OpenDocument with a password", "a.odt", locked.with_aes(SECRET, "pass"), {}
    yield "PDF with a password", "a.pdf", _written(writer), {}
    yield "… when none of those given opens it", "a.pdf", _written(writer), {"passwords": ("a", "b")}
    yield "OpenDocument with OpenPGP keys", "a.odt", package("x", manifest="<m><keyinfo/><encryption-data/></m>"), {}
    yield "a member of a ZIP archive with a password", "a.zip", encrypted(TEXT.encode(), b"pass"), {}
    yield "… encrypted with AES", "a.zip", _with_aes(encrypted(TEXT.encode(), b"pass")), {}


def _packed() -> Iterator[Case]:
    many = zipped({f"{number}.txt": b"word " * 100_000 for number in range(5)})
    yield "archives in archives, or mails in mails, below the limit", "a.zip", nested(4), {}
    yield "a member that is too large", "a.zip", many, {"max_member_bytes": 2**17}
    yield "an archive that unpacks to too much", "a.zip", many, {"max_unpacked_bytes": 2**20}
    yield "an archive of too many files", "a.zip", many, {"max_members": 3}
    yield "a bomb", "a.zip", _bomb(), {}


def messages() -> dict[str, str]:
    """Kind → what an ingest says of it."""
    with TemporaryDirectory() as folder:
        said = {kind: _message(Path(folder), *case) for kind, *case in cases()}
        return said | _troubles(Path(folder))


def _message(folder: Path, name: str, content: bytes, options: dict[str, Any]) -> str:
    path = folder / name
    path.write_bytes(content)
    items = list(load_all(path, name, LoadOptions(**options)))
    failed = [f"{'skipped' if item.skipped else 'failed'}: {item.reason}" for item in items if _has_failed(item)]
    return failed[0] if failed else f"incomplete: {'; '.join(items[0].problems)}"


def _has_failed(item: Any) -> bool:
    return isinstance(item, FailedSource)


def _troubles(folder: Path) -> dict[str, str]:
    job = Job(Recipe(), Troublesome(), max_tokens=32, memory_mib=1024)
    files = [(kind, folder / f"{number}.txt") for number, kind in enumerate(TROUBLES)]
    for kind, path in files:
        path.write_text(TROUBLES[kind], encoding="utf-8")
    with Workers(1, 2) as workers, closing(workers.read(files, job)) as read:
        return {kind: f"failed: {end.reason}"[:160] for kind, end in read if isinstance(end, FileEnd)}


def _with_aes(archive: bytes) -> bytes:
    """A ZIP archive that says that its member is encrypted as WinZip does it."""
    raw, entry = bytearray(archive), archive.index(b"PK\x01\x02")
    raw[8:10] = raw[entry + 10 : entry + 12] = (99).to_bytes(2, "little")
    return bytes(raw)


def _bomb() -> bytes:
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("bomb.txt", b" " * 20_000_000)
    return file.getvalue()


def _saved(document: Any) -> bytes:
    file = BytesIO()
    document.save(file)
    return file.getvalue()


def _written(writer: pypdf.PdfWriter) -> bytes:
    file = BytesIO()
    writer.write(file)
    return file.getvalue()


def table() -> str:
    """The list as Markdown."""
    rows = [f"| {kind} | {said.replace('|', '·')} |" for kind, said in messages().items()]
    return "\n".join(["| what | message |", "|---|---|", *rows])


if __name__ == "__main__":
    print(table())
