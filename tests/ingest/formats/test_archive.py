import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable

import pytest

from ingest.document import FailedSource, LoadedDocument
from tests.ingest.pdf import pdf


def zipped(members: dict[str, bytes | str], *, stored: bool = False) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def tarred(members: dict[str, bytes], mode: str = "w", **options) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode, **options) as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def encrypted(content: bytes, password: bytes) -> bytes:
    """A ZIP archive of `secret.txt`, encrypted as in the appendix of PKWARE's APPNOTE."""
    raw = bytearray(zipped({"secret.txt": content}, stored=True))
    keys = [0x12345678, 0x23456789, 0x34567890]

    def update(byte: int) -> None:
        keys[0] = _crc(byte, keys[0])
        keys[1] = ((keys[1] + (keys[0] & 0xFF)) * 134775813 + 1) & 0xFFFFFFFF
        keys[2] = _crc(keys[1] >> 24, keys[2])

    def encrypt(byte: int) -> int:
        mask = keys[2] | 2
        secret = byte ^ (((mask * (mask ^ 1)) >> 8) & 0xFF)
        update(byte)
        return secret

    for byte in password:
        update(byte)
    check = zlib.crc32(content) >> 24
    secret = bytes(map(encrypt, [*range(11), check, *content]))
    entry = raw.index(b"PK\x01\x02")
    for at, flags, size in ((0, 6, 18), (entry, 8, 20)):
        raw[at + flags] |= 1
        raw[at + size : at + size + 4] = len(secret).to_bytes(4, "little")
    data = entry - len(content)
    raw[data:entry] = secret
    end = raw.index(b"PK\x05\x06")
    raw[end + 16 : end + 20] = (entry + 12).to_bytes(4, "little")
    return bytes(raw)


def _crc(byte: int, key: int) -> int:
    return zlib.crc32(bytes([byte]), key ^ 0xFFFFFFFF) ^ 0xFFFFFFFF


def texts(items: dict) -> dict[str, str]:
    return {source: item.text if isinstance(item, LoadedDocument) else item.reason for source, item in items.items()}


MEMBERS = {"年假.txt": "十二天".encode(), "sub/b.md": b"# B", "sub/c.pdf": pdf("page")}
FOUND = {"年假.txt": "十二天", "sub/b.md": "# B", "sub/c.pdf": "page"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.zip", zipped(MEMBERS)),
        ("a.tar", tarred(MEMBERS)),
        ("a.tar.gz", tarred(MEMBERS, "w:gz")),
        ("A.TGZ", tarred(MEMBERS, "w:gz")),
        ("a.tar.bz2", tarred(MEMBERS, "w:bz2")),
        ("a.tar.xz", tarred(MEMBERS, "w:xz")),
        ("a.v1.tar.xz", tarred(MEMBERS, "w:xz", format=tarfile.PAX_FORMAT)),
    ],
)
def test_each_member_is_a_source_of_its_own(read_all: Callable, name: str, content: bytes) -> None:
    assert texts(read_all(name, content)) == {f"{name}/{path}": text for path, text in FOUND.items()}


@pytest.mark.parametrize(
    ("name", "compress"), [("年假.txt.gz", gzip.compress), ("a.txt.bz2", bz2.compress), ("a.txt.xz", lzma.compress)]
)
def test_a_compressed_file_is_the_file_it_was(read_all: Callable, name: str, compress: Callable) -> None:
    assert texts(read_all(name, compress("十二天".encode()))) == {f"{name}/{name.rpartition('.')[0]}": "十二天"}


@pytest.mark.parametrize("make", [zipped, tarred])
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("../../outside.txt", "outside.txt"),
        ("/etc/x.txt", "etc/x.txt"),
        ("a/../../b.txt", "a/b.txt"),
        ("..\\x.txt", "x.txt"),
        ("C:\\x\\y.txt", "x/y.txt"),
        ("C:\\x.txt", "x.txt"),
        ("../年假/../../x.txt", "年假/x.txt"),
        ("./a//b.txt", "a/b.txt"),
    ],
)
def test_no_name_leaves_the_archive(read_all: Callable, make: Callable, name: str, path: str) -> None:
    extension = "zip" if make is zipped else "tar"
    assert texts(read_all(f"a.{extension}", make({name: b"text"}))) == {f"a.{extension}/{path}": "text"}


def test_hidden_files_and_links_are_left_out_and_other_formats_named(read_all: Callable) -> None:
    items = read_all("a.zip", zipped({".git/x.txt": b"x", "__MACOSX/y.txt": b"y", "a.exe": b"z", "b.txt": b"b"}))
    assert items["a.zip/a.exe"] == FailedSource("a.zip/a.exe", "its format is not supported", skipped=True)
    assert list(items) == ["a.zip/a.exe", "a.zip/b.txt"]
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            entry = tarfile.TarInfo("link.txt")
            entry.type, entry.linkname = kind, "/etc/passwd"
            archive.addfile(entry)
    assert read_all("a.tar", file.getvalue()) == {}


def test_members_of_one_name_are_both_there(read_all: Callable) -> None:
    assert texts(read_all("a.tar", tarred({"a.txt": b"1"})[:1024] + tarred({"a.txt": b"2"}))) == {
        "a.tar/a.txt": "1",
        "a.tar/a.txt (2)": "2",
    }


@pytest.mark.parametrize("encoding", ["gb18030", "cp932", "utf-8"])
def test_names_that_say_no_encoding_are_read_in_theirs(read_all: Callable, encoding: str) -> None:
    name = "休暇の申し込み.txt" if encoding == "cp932" else "员工年假申请.txt"
    raw = zipped({"x" * len(name.encode(encoding)): b"text"}).replace(
        b"x" * len(name.encode(encoding)), name.encode(encoding)
    )
    assert list(read_all("a.zip", raw)) == [f"a.zip/{name}"]
    assert list(read_all("a.tar", tarred({name: b"text"}, encoding=encoding, format=tarfile.GNU_FORMAT))) == [
        f"a.tar/{name}"
    ]


def nested(levels: int) -> bytes:
    content = zipped({"deep.txt": b"deep"})
    for _ in range(levels - 1):
        content = zipped({"in.zip": content, "beside.txt": b"beside"})
    return content


def test_archives_in_archives_are_read_to_the_limit(read_all: Callable) -> None:
    found = texts(read_all("a.zip", nested(4)))
    assert found["a.zip/in.zip/in.zip/beside.txt"] == "beside"
    assert found["a.zip/in.zip/in.zip/in.zip"] == "lies 3 archives or mails deep, and is not read: unpack it"
    assert "a.zip/in.zip/in.zip/in.zip/deep.txt" in read_all("a.zip", nested(4), max_depth=4)


@pytest.mark.parametrize("make", [zipped, tarred])
def test_a_member_that_is_too_large_is_refused_and_the_others_are_read(read_all: Callable, make: Callable) -> None:
    name = "a.zip" if make is zipped else "a.tar"
    content = make({"big.txt": b"word " * 300_000, "small.txt": b"small"})
    assert texts(read_all(name, content, max_member_bytes=2**20)) == {
        f"{name}/big.txt": "is larger than 1 MB, which is the limit of a packed file",
        f"{name}/small.txt": "small",
    }


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_an_archive_that_unpacks_to_too_much_is_refused_at_the_limit(read_all: Callable, name: str) -> None:
    members = {f"{number}.txt": b"word " * 100_000 for number in range(9)}
    content = zipped(members) if name == "a.zip" else tarred(members, "w:gz")
    found = texts(read_all(name, content, max_unpacked_bytes=2**20))
    assert found[name] == "unpacks to more than 1 MB, which is the limit"
    assert len(found) == 3


def test_the_limit_holds_for_archives_in_archives_together(read_all: Callable) -> None:
    inner = zipped({"a.txt": b"word " * 100_000})
    found = texts(read_all("a.zip", zipped({f"{n}.zip": inner for n in range(5)}), max_unpacked_bytes=2**20))
    assert sum(text.startswith("word") for text in found.values()) == 2
    assert "unpacks to more than 1 MB, which is the limit" in found.values()


def test_a_bomb_is_refused_by_its_ratio(read_all: Callable) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("bomb.txt", b" " * 20_000_000)
    (reason,) = texts(read_all("a.zip", file.getvalue())).values()
    assert "times its size; 1,000 is the limit" in reason


def test_too_many_members_are_refused(read_all: Callable) -> None:
    found = texts(read_all("a.zip", zipped({f"{n}.txt": b"x" for n in range(9)}), max_members=5))
    assert found["a.zip"] == "holds more than 5 files, which is the limit; unpack it"
    assert len(found) == 6


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.gz", "a.txt.xz", "a.bz2"])
@pytest.mark.parametrize("content", [b"torn", b"PK\x03\x04 torn", b"\x1f\x8b torn", b"BZh torn"])
def test_what_is_no_archive_is_said_to_be_none(failure: Callable, name: str, content: bytes) -> None:
    assert failure(name, content).startswith(("is broken", "is damaged"))


def test_a_torn_archive_gives_what_is_whole(read_all: Callable) -> None:
    content = tarred({"a.txt": b"whole", "b.txt": b"x" * 5000})[:3000]
    found = texts(read_all("a.tar", content))
    assert found["a.tar/a.txt"] == "whole"
    assert found["a.tar"].startswith("is damaged")
    raw = bytearray(zipped({"a.txt": b"one two three", "b.txt": b"whole"}))
    raw[45] ^= 0xFF
    found = texts(read_all("a.zip", bytes(raw)))
    assert found["a.zip/a.txt"].startswith("is damaged in its archive")
    assert found["a.zip/b.txt"] == "whole"


def test_an_encrypted_member_is_read_with_any_of_the_passwords(read_all: Callable) -> None:
    archive = encrypted("secret 年假".encode(), b"pass")
    assert texts(read_all("a.zip", archive, passwords=("wrong", "pass"))) == {"a.zip/secret.txt": "secret 年假"}
    reason = "is protected by a password: give it with --password"
    assert texts(read_all("a.zip", archive)) == {"a.zip/secret.txt": reason}
    (reason,) = texts(read_all("a.zip", archive, passwords=("a", "b"))).values()
    assert reason == "is protected by a password, and none of the 2 given opens it"
