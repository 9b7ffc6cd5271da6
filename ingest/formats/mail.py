"""Mails: subject, from, to and date, then the body once, of its alternatives the plain one; attachments are files."""

import email
from collections.abc import Iterator
from datetime import UTC
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import Message
from email.policy import Compat32
from email.utils import parsedate_to_datetime
from typing import Any, BinaryIO

from ingest.decode import UndecodableText, clean, decode
from ingest.document import FailedMember, LoadedDocument, LoadOptions, Member
from ingest.formats.archive import Allowance, safe_path
from ingest.formats.assembly import Assembly, one_line
from ingest.formats.web import text_of_html

HEADERS = ("Subject", "From", "To", "Cc", "Date")
EXTENSIONS = {"message/rfc822": ".eml", "text/html": ".html", "text/plain": ".txt", "application/pdf": ".pdf"}


def read_mail(source: str, raw: bytes, options: LoadOptions) -> LoadedDocument:
    """The mail itself; what is attached comes from `attachments`."""
    mail = _parsed(raw)
    said = {name: text for name in HEADERS if (text := _header(mail, name))}
    parts = Assembly()
    parts.block("\n".join(f"{name}: {text}" for name, text in said.items()))
    for body in _bodies(mail):
        parts.block(_body_text(body))
    metadata = {name.lower(): text for name, text in said.items() if name != "Cc"} | _iso_date(mail)
    return parts.document(source, metadata=metadata if said else {})


def attachments(file: BinaryIO, options: LoadOptions, allowance: Allowance) -> Iterator[Member | FailedMember]:
    """The attached files and mails."""
    mail = _parsed(file.read())
    bodies = {id(body) for body in _bodies(mail)}
    for number, part in enumerate(_leaves(mail), 1):
        name = _file_name(part)
        # The picture of a signature has no name; an alternative body is the mail's text once more.
        if id(part) in bodies or not (name or _is_attached(part)):
            continue
        allowance.count_member()
        path = safe_path(name) or f"attachment-{number}{EXTENSIONS.get(part.get_content_type(), '.bin')}"
        yield Member(path, _content(part))


class _Raw(Compat32):
    """Headers as they are written: the standard policy makes U+FFFD of bytes that are not ASCII."""

    def header_fetch_parse(self, name: str, value: str) -> str:
        return value


def _parsed(raw: bytes) -> Message:
    return email.message_from_bytes(raw, policy=_Raw())


def _leaves(part: Message) -> Iterator[Message]:
    """The parts that hold something; an attached mail is one, and a mail of its own."""
    if part.is_multipart() and part.get_content_type() != "message/rfc822":
        for inner in part.get_payload():
            yield from _leaves(inner)  # type: ignore[arg-type]  # a list of messages when it is multipart
    else:
        yield part


def _bodies(part: Message) -> list[Message]:
    """The parts that are the mail's own text; of alternatives the plain one, unless it is empty."""
    if _is_attached(part) or (_file_name(part) and not part.is_multipart()):
        return []
    kind = part.get_content_type()
    if not part.is_multipart():
        # What says that it has parts, and has no boundary between them, is its own text.
        return [part] if kind in ("text/plain", "text/html") or kind.startswith("multipart/") else []
    if kind == "message/rfc822":
        return []
    inner = [_bodies(one) for one in part.get_payload()]  # type: ignore[arg-type]
    if kind != "multipart/alternative":
        return [body for bodies in inner for body in bodies]
    filled = [bodies for bodies in inner if any(_body_text(body).strip() for body in bodies)]
    plain = [bodies for bodies in filled if bodies[0].get_content_type() == "text/plain"]
    return (plain or filled or [[]])[0]


def _is_attached(part: Message) -> bool:
    return part.get_content_disposition() == "attachment" or part.get_content_type() == "message/rfc822"


def _body_text(part: Message) -> str:
    if part.get_content_type() == "text/html":
        return text_of_html(_content(part))
    return decode(_content(part), declared=part.get_content_charset())


def _content(part: Message) -> bytes:
    if part.get_content_type() == "message/rfc822":
        payload: Any = part.get_payload()
        return payload[0].as_bytes() if isinstance(payload, list) and payload else b""
    content = part.get_payload(decode=True)
    return content if isinstance(content, bytes) else b""


def _file_name(part: Message) -> str:
    """The name as it was meant: in RFC 2231's way, in RFC 2047's, or raw."""
    return _words(part.get_filename() or "")


def _header(mail: Message, name: str) -> str:
    return _words(str(mail.get(name, "")))


def _words(header: str) -> str:
    """A header's text; its encoded words in the charset they name or, if that is wrong, in the one that fits."""
    try:
        pieces = decode_header(header) if header.isascii() else [(header, None)]
    except (HeaderParseError, ValueError):
        pieces = [(header, None)]
    return clean(one_line("".join(_word(piece, charset) for piece, charset in pieces)))


def _word(piece: str | bytes, charset: str | None) -> str:
    raw = piece.encode("utf-8", "surrogateescape") if isinstance(piece, str) else piece
    charset = charset if charset != "unknown-8bit" else None
    try:
        return decode(raw, declared=charset)
    except UndecodableText:
        return raw.decode("utf-8", "backslashreplace")


def _iso_date(mail: Message) -> dict[str, str]:
    try:
        date = parsedate_to_datetime(_header(mail, "Date"))
        return {"date": date.astimezone(UTC).isoformat()}
    except (ValueError, TypeError, OverflowError):
        return {}
