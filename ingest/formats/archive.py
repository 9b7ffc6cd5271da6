"""Archives, walked in place: nothing is written to disk, and what is packed to harm is refused with its figures."""

import bz2
import gzip
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any, BinaryIO

from ingest.decode import UndecodableText, decode
from ingest.document import FailedMember, LoadOptions, Member, Protected, Unreadable

MAX_RATIO = 1000
"""Unpacked over packed bytes of a member of more than a megabyte; deflate's own limit is 1,032."""
BROKEN = (
    OSError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
COMPRESSIONS: dict[bytes, Any] = {b"\x1f\x8b": gzip, b"BZh": bz2, b"\xfd7zXZ\x00": lzma}
DRIVE = re.compile(r"^[A-Za-z]:")


class Allowance:
    """What one file may still unpack, with everything packed in it at any depth."""

    def __init__(self, options: LoadOptions) -> None:
        self._options = options
        self._bytes, self._members = options.max_unpacked_bytes, options.max_members

    def count_member(self) -> None:
        """One more member. Raises Unreadable."""
        self._members -= 1
        if self._members < 0:
            raise Unreadable(f"holds more than {self._options.max_members:,} files, which is the limit; unpack it")

    def spend(self, size: int) -> None:
        """So many bytes more. Raises Unreadable."""
        self._bytes -= size
        if self._bytes < 0:
            raise Unreadable(f"unpacks to more than {_megabytes(self._options.max_unpacked_bytes)}, which is the limit")

    def read(self, stream: IO[bytes], packed: int | None = None) -> bytes:
        """All of a member, of which `packed` bytes lie in the archive. Raises Unreadable and _Refused."""
        most = self._options.max_member_bytes
        content = stream.read(min(most, self._bytes) + 1)
        self.spend(len(content))
        if len(content) > most:
            raise _Refused(f"is larger than {_megabytes(most)}, which is the limit of a packed file")
        if packed is not None and len(content) > max(2**20, MAX_RATIO * packed):
            raise _Refused(f"unpacks to {len(content) // max(packed, 1):,} times its size; {MAX_RATIO:,} is the limit")
        return content


class _Refused(Exception):
    """This member is not read; the others may be."""


def open_zip(file: BinaryIO, options: LoadOptions, allowance: Allowance) -> Iterator[Member | FailedMember]:
    """The files of a ZIP archive; encrypted ones with the first password that opens them."""
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise Unreadable(f"is broken or not what its suffix says ({error})") from error
    with archive:
        for entry in archive.infolist():
            path = safe_path(_zip_name(entry))
            if entry.is_dir() or not path:
                continue
            allowance.count_member()
            try:
                yield Member(path, _unzipped(archive, entry, options, allowance))
            except (Protected, _Refused) as error:
                yield FailedMember(path, str(error))
            except BROKEN as error:
                yield FailedMember(path, f"is damaged in its archive ({error})")


def _unzipped(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, options: LoadOptions, allowance: Allowance) -> bytes:
    if not entry.flag_bits & 1:
        with archive.open(entry) as stream:
            return allowance.read(stream, entry.compress_size)
    for password in options.passwords:
        try:
            with archive.open(entry, pwd=password.encode()) as stream:
                return allowance.read(stream, entry.compress_size)
        except (RuntimeError, zipfile.BadZipFile, zlib.error):  # one wrong password in 256 shows only at the checksum
            continue
    if entry.compress_type == 99:
        raise _Refused("is encrypted with AES, which we do not open: unpack it")
    raise Protected(len(options.passwords))


def _zip_name(entry: zipfile.ZipInfo) -> str:
    """The name as it was meant: without the UTF-8 flag Python reads it as cp437, but it may be GBK or CP932."""
    if entry.flag_bits & 0x800:
        return entry.filename
    try:
        return decode(entry.orig_filename.encode("cp437"))
    except (UndecodableText, UnicodeEncodeError):
        return entry.filename


def open_tar(file: BinaryIO, options: LoadOptions, allowance: Allowance) -> Iterator[Member | FailedMember]:
    """The regular files of a tar archive, compressed or not; links and devices are no files of it."""
    try:
        archive = tarfile.open(fileobj=file, mode="r|*", errors="surrogateescape")  # noqa: SIM115 (closed below)
    except (tarfile.TarError, *BROKEN) as error:
        raise Unreadable(f"is broken or not what its suffix says ({error})") from error
    with archive:
        try:
            for entry in archive:
                path = safe_path(_tar_name(entry.name))
                allowance.count_member()
                if entry.isfile() and path:
                    yield _untarred(archive, entry, path, allowance)
                else:  # what is passed over is unpacked too
                    allowance.spend(entry.size)
        except (tarfile.TarError, *BROKEN) as error:
            raise Unreadable(f"is damaged: what lies behind the damage is not read ({error})") from error


def _untarred(
    archive: tarfile.TarFile, entry: tarfile.TarInfo, path: str, allowance: Allowance
) -> Member | FailedMember:
    stream = archive.extractfile(entry)
    if stream is None:
        return FailedMember(path, "is no regular file")
    try:
        return Member(path, allowance.read(stream))
    except _Refused as error:
        allowance.spend(entry.size - stream.tell())  # the rest is passed over
        return FailedMember(path, str(error))


def _tar_name(name: str) -> str:
    raw = name.encode("utf-8", "surrogateescape")
    try:
        return decode(raw)
    except UndecodableText:
        return raw.decode("utf-8", "backslashreplace")


def open_compressed(file: BinaryIO, options: LoadOptions, allowance: Allowance) -> Iterator[Member | FailedMember]:
    """The one file of a .gz, .bz2 or .xz, whose name is the archive's without that suffix."""
    start = file.read(6)
    file.seek(0)
    compression = next((module for magic, module in COMPRESSIONS.items() if start.startswith(magic)), None)
    if compression is None:
        raise Unreadable("is broken or not what its suffix says")
    allowance.count_member()
    try:
        with compression.open(file) as stream:
            yield Member("", allowance.read(stream))
    except _Refused as error:
        raise Unreadable(str(error)) from error
    except BROKEN as error:
        raise Unreadable(f"is damaged ({error})") from error


def safe_path(name: str) -> str:
    """A relative POSIX path without `..`; empty for one of a hidden file, which is left out as in a folder."""
    path = DRIVE.sub("", name.replace("\\", "/").replace("\x00", "").replace("\n", " "))
    parts = [part.strip() for part in path.split("/") if part.strip() not in ("", ".", "..")]
    hidden = any(part.startswith(".") for part in parts) or parts[:1] == ["__MACOSX"]
    return "" if hidden else "/".join(parts)


def _megabytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MB"
