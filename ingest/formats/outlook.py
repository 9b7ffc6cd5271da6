"""Outlook's .msg files → mails as the internet has them, which mail.py reads."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.header import Header
from email.mime.application import MIMEApplication
from email.mime.message import MIMEMessage
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.utils import format_datetime
from io import BytesIO
from typing import Any, BinaryIO

from ingest.decode import UndecodableText, clean, decode
from ingest.document import FailedMember, LoadedDocument, LoadOptions, Member, Unreadable
from ingest.formats.archive import Allowance
from ingest.formats.assembly import one_line
from ingest.formats.mail import attachments, read_mail

# Properties: https://learn.microsoft.com/openspecs/exchange_server_protocols/ms-oxprops
SUBJECT, SENDER, SENDER_ADDRESS, SENDER_SMTP, TO, CC = "0037", "0C1A", "0C1F", "5D01", "0E04", "0E03"
BODY, HTML, RTF = "1000", "1013", "1009"
RTF_ONLY = "the text of this mail is there in RTF only, which is not read: save the mail as .eml"
SENT, DELIVERED = 0x00390040, 0x0E060040
FILE, LONG_NAME, SHORT_NAME, DISPLAY_NAME = "3701", "3707", "3704", "3001"
EMBEDDED_HEADER, HEADER = 24, 32
"""Bytes before the properties of fixed size: https://learn.microsoft.com/openspecs/exchange_server_protocols/ms-oxmsg"""
BEGIN = datetime(1601, 1, 1, tzinfo=UTC)
STORAGE, STREAM = 1, 2
LAST = 10**18 * 2
"""Hundreds of nanoseconds: past the year 7900 there are no mails."""
DEEPEST = 8
"""Mails attached to mails; `max_depth` of the options refuses them before."""


def read_outlook(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """The mail itself."""
    document = read_mail(source, _as_mail(raw), options)
    return replace(document, problems=(*document.problems, RTF_ONLY)) if _is_rtf_only(raw) else document


def outlook_attachments(file: BinaryIO, options: LoadOptions, allowance: Allowance) -> Iterator[Member | FailedMember]:
    """The attached files and mails; a mail as an .eml."""
    yield from attachments(BytesIO(_as_mail(file.read())), options, allowance)


def _is_rtf_only(raw: bytes) -> bool:
    from olefile import OleFileIO

    with OleFileIO(BytesIO(raw)) as file:
        message = _Message(file, [], HEADER)
        return bool(message.stream(f"__substg1.0_{RTF}0102")) and not message.has_body()


def _as_mail(raw: bytes) -> bytes:
    from olefile import OleFileIO

    try:
        with OleFileIO(BytesIO(raw)) as file:
            return _Message(file, [], HEADER).mail().as_bytes()
    except OSError as error:  # olefile has no errors of its own
        raise Unreadable(f"is broken or not what its suffix says ({error})") from error


class _Message:
    """A message in an OLE file, which may be attached to another one there."""

    def __init__(self, file: Any, folder: list[str], header: int) -> None:
        self.file, self.folder, self.header = file, folder, header

    def mail(self) -> MIMEMultipart:
        """Headers, the body in its alternatives, what is attached."""
        mail = MIMEMultipart("mixed")
        address = self._text(SENDER_SMTP) or self._text(SENDER_ADDRESS)
        sender = f"{self._text(SENDER)} <{address}>" if "@" in address else self._text(SENDER)
        headers = {"Subject": self._text(SUBJECT), "From": sender, "To": self._text(TO), "Cc": self._text(CC)}
        for name, value in (headers | {"Date": self._date()}).items():
            if value:
                mail[name] = Header(value, "utf-8", maxlinelen=10**6).encode()
        mail.attach(self._body())
        for folder in self._attachments():
            mail.attach(self._attachment(folder))
        return mail

    def has_body(self) -> bool:
        """Whether its text is there as plain text or HTML."""
        return any(self._value(tag).strip() for tag in (BODY, HTML))

    def _body(self) -> MIMEMultipart:
        body = MIMEMultipart("alternative")
        plain, html = self._value(BODY), self._value(HTML)
        if plain.strip():
            body.attach(MIMEText(plain, "plain", "utf-8"))
        if html.strip():
            body.attach(MIMEText(html, "html", "utf-8"))
        return body

    def _attachment(self, folder: list[str]) -> MIMEApplication | MIMEMessage:
        names = (self._text(tag, folder) for tag in (LONG_NAME, SHORT_NAME, DISPLAY_NAME))
        name = next(filter(None, names), "attachment.bin")
        embedded = [*folder, f"__substg1.0_{FILE}000D"]
        if self.file.get_type("/".join(embedded)) == STORAGE and len(embedded) < 2 * DEEPEST:
            part: Any = MIMEMessage(_Message(self.file, embedded, EMBEDDED_HEADER).mail())
            name = f"{name}.eml"
        else:
            part = MIMEApplication(self.stream(f"__substg1.0_{FILE}0102", folder))
        part.add_header("Content-Disposition", "attachment", filename=("utf-8", "", name))
        return part

    def _attachments(self) -> list[list[str]]:
        depth = len(self.folder)
        folders = (path for path in self.file.listdir(streams=False, storages=True) if path[:depth] == self.folder)
        return [path for path in folders if len(path) == depth + 1 and path[-1].startswith("__attach_version1.0_")]

    def _text(self, tag: str, folder: list[str] | None = None) -> str:
        return one_line(self._value(tag, folder))

    def _value(self, tag: str, folder: list[str] | None = None) -> str:
        """A property's text, as Unicode or in the code page of whoever wrote it."""
        wide = self.stream(f"__substg1.0_{tag}001F", folder)
        if wide:
            return clean(wide.decode("utf-16-le", "replace"))
        narrow = self.stream(f"__substg1.0_{tag}001E", folder) or self.stream(f"__substg1.0_{tag}0102", folder)
        try:
            return decode(narrow)
        except UndecodableText:
            return narrow.decode("utf-8", "backslashreplace")

    def stream(self, name: str, folder: list[str] | None = None) -> bytes:
        """The content of a property's stream; empty where there is none."""
        path = [*(self.folder if folder is None else folder), name]
        return self.file.openstream(path).read() if self.file.get_type("/".join(path)) == STREAM else b""

    def _date(self) -> str:
        """When it was sent, of the properties of 16 bytes: tag, flags, value."""
        properties = self.stream("__properties_version1.0")[self.header :]
        for at in range(0, len(properties) - 15, 16):
            tag = int.from_bytes(properties[at : at + 4], "little")
            ticks = int.from_bytes(properties[at + 8 : at + 16], "little")
            if tag in (SENT, DELIVERED) and ticks < LAST:
                return format_datetime(BEGIN + timedelta(microseconds=ticks // 10))
        return ""
