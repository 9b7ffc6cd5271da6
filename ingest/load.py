"""A file → its documents: chooses the reader by the file's name, and walks archives and mails in place."""

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from ingest.decode import UndecodableText
from ingest.document import FailedMember, FailedSource, LoadedDocument, LoadOptions, Member, Unreadable
from ingest.formats import (
    archive,
    mail,
    notebook,
    opendocument,
    outlook,
    pdf,
    picture,
    slides,
    spreadsheet,
    structured,
    text,
    web,
    word,
)
from ingest.formats.archive import Allowance

__all__ = ["FailedSource", "LoadOptions", "LoadedDocument", "UnreadableFile", "is_supported", "load", "load_all"]

Reader = Callable[[str, bytes, LoadOptions], LoadedDocument]
Opener = Callable[[BinaryIO, LoadOptions, Allowance], Iterator[Member | FailedMember]]

READERS: dict[str, Reader] = {
    ".txt": text.read_prose,
    ".md": text.read_markdown,
    ".markdown": text.read_markdown,
    ".rst": text.read_restructured,
    ".html": web.read_html,
    ".htm": web.read_html,
    ".xhtml": web.read_html,
    ".epub": web.read_epub,
    ".pdf": pdf.read_pdf,
    ".docx": word.read_docx,
    ".docm": word.read_docx,
    ".pptx": slides.read_pptx,
    ".pptm": slides.read_pptx,
    ".csv": spreadsheet.read_delimited,
    ".tsv": spreadsheet.read_delimited,
    ".xlsx": spreadsheet.read_workbook,
    ".xlsm": spreadsheet.read_workbook,
    ".xls": spreadsheet.read_old_workbook,
    ".ods": spreadsheet.read_open_workbook,
    ".odt": opendocument.read_text,
    ".odp": opendocument.read_slides,
    ".rtf": word.read_rtf,
    ".json": structured.read_json,
    ".jsonl": structured.read_json_lines,
    ".ndjson": structured.read_json_lines,
    ".xml": structured.read_xml,
    ".ipynb": notebook.read_notebook,
    ".eml": mail.read_mail,
    ".msg": outlook.read_outlook,
}
READERS |= dict.fromkeys(text.CODE, text.read_plain) | dict.fromkeys(picture.PICTURES, picture.read_picture)

OPENERS: dict[str, Opener] = {
    ".zip": archive.open_zip,
    ".tar": archive.open_tar,
    ".eml": mail.attachments,
    ".msg": outlook.outlook_attachments,
}
# Compressed with two names; a .gz that is not a tar holds one file.
OPENERS |= dict.fromkeys((".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz"), archive.open_tar)
OPENERS |= dict.fromkeys((".gz", ".bz2", ".xz"), archive.open_compressed)
TOO_DEEP = "lies {} archives or mails deep, and is not read: unpack it"
FORMATS = tuple(sorted({*READERS, *OPENERS}))
"""The suffixes that can be read; `text.CODE_NAMES` are read too."""


class UnreadableFile(Exception):
    """The file cannot be opened, or is not what its suffix says."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path.name}: {reason}")
        self.path, self.reason = path, reason


def is_supported(path: Path | PurePosixPath) -> bool:
    """Whether files of that name are read."""
    return bool(_reader(path.name) or _opener(path.name))


def load_all(
    path: Path,
    source: str,
    options: LoadOptions = LoadOptions(),  # noqa: B008 (frozen)
) -> Iterator[LoadedDocument | FailedSource]:
    """Read one file; `source` is the name it is cited by.

    A plain file gives one item. What is packed in an archive or attached to a mail gives one each, named
    `source/path`. Whatever a file holds, nothing is raised: what cannot be read is a FailedSource.
    """
    walk = _Walk(options)
    try:
        with path.open("rb") as file:
            yield from walk.read(path.name, source, file, 0)
    except OSError as error:
        yield FailedSource(source, error.strerror or str(error))


def load(path: Path, source: str, options: LoadOptions = LoadOptions()) -> LoadedDocument:  # noqa: B008 (frozen)
    """Read a file that is one document. Raises UnreadableFile with the reason in a plain sentence."""
    first = next(load_all(path, source, options), FailedSource(source, "is empty"))
    if isinstance(first, FailedSource):
        raise UnreadableFile(path, first.reason)
    return first


class _Walk:
    """One file of the folder with everything packed in it."""

    def __init__(self, options: LoadOptions) -> None:
        self.options = options
        self.allowance = Allowance(options)

    def read(self, name: str, source: str, file: BinaryIO, depth: int) -> Iterator[LoadedDocument | FailedSource]:
        """The document of a file, then what is packed in it."""
        reader, opener = _reader(name), _opener(name)
        if not reader and not opener:
            yield FailedSource(source, "its format is not supported", skipped=True)
        elif not file.read(1):
            yield FailedSource(source, "is empty")
            return
        failed = False
        file.seek(0)
        if reader:
            document = _document(reader, source, file.read(), self.options)
            yield document
            failed = isinstance(document, FailedSource)
            file.seek(0)
        if opener and not reader and depth >= self.options.max_depth:
            yield FailedSource(source, TOO_DEEP.format(depth))
        elif opener:
            for item in self.members(opener, name, source, file, depth):
                if not (failed and item.source == source):  # a broken mail has no attachments either
                    yield item

    def members(
        self, opener: Opener, name: str, source: str, file: BinaryIO, depth: int
    ) -> Iterator[LoadedDocument | FailedSource]:
        """What is packed in a file."""
        taken: dict[str, int] = {}
        members = opener(file, self.options, self.allowance)
        while True:
            try:
                member = next(members, None)
            except BaseException as error:
                yield FailedSource(source, _reason(error))
                return
            if member is None:
                return
            path = member.path or PurePosixPath(name).stem
            inner = f"{source}/{_unique(path, taken)}"
            if isinstance(member, FailedMember):
                yield FailedSource(inner, member.reason)
            elif depth >= self.options.max_depth:
                yield FailedSource(inner, TOO_DEEP.format(depth + 1))
            else:
                yield from self.read(PurePosixPath(path).name, inner, BytesIO(member.content), depth + 1)


def _document(reader: Reader, source: str, raw: bytes, options: LoadOptions) -> LoadedDocument | FailedSource:
    try:
        document = reader(source, raw, options)
        if not document.text.strip():
            raise Unreadable("no text" + "".join(f" ({problem})" for problem in document.problems))
    except BaseException as error:
        return FailedSource(source, _reason(error))
    return document


def _reason(error: BaseException) -> str:
    """Why a file failed. A parser may raise anything on a broken file; what is not about the file goes on up."""
    if isinstance(error, Unreadable | UndecodableText):
        return str(error)
    if isinstance(error, MemoryError):
        return "needs more memory than a file may take: raise `file_memory_mib` in `[ingest]` of the settings file"
    # A panic of a parser written in Rust is no Exception.
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    said = str(error).strip().split("\n")[0][:200]
    return f"is broken or not what its suffix says ({type(error).__name__}{': ' if said else ''}{said})"


def _reader(name: str) -> Reader | None:
    if name.startswith("~$"):  # left by Office while a file is open, and no document
        return None
    if name.lower() in text.CODE_NAMES:
        return text.read_plain
    return READERS.get(PurePosixPath(name.lower()).suffix)


def _opener(name: str) -> Opener | None:
    suffixes = PurePosixPath(name.lower()).suffixes
    return OPENERS.get("".join(suffixes[-2:])) or OPENERS.get("".join(suffixes[-1:]))


def _unique(path: str, taken: dict[str, int]) -> str:
    """The path, with a number when members of that path came before."""
    taken[path] = count = taken.get(path, 0) + 1
    return path if count == 1 else _unique(f"{path} ({count})", taken)
