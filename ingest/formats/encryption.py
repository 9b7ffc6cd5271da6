"""OpenDocument files behind a password → the files they are, as far as they are XML.

Each part is deflated, then encrypted under a key of its own; since LibreOffice 24.8 the whole file may be one part.
https://docs.oasis-open.org/office/OpenDocument/v1.4/OpenDocument-v1.4-part2-packages.html#Encryption
"""

import hashlib
import zlib
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from zipfile import ZipFile

from ingest.document import LoadOptions, Protected, Unreadable
from ingest.formats.package import Package

MANIFEST, KIND, WHOLE = "META-INF/manifest.xml", "mimetype", "encrypted-package"
DAMAGED = "is protected by a password, and what it says of its encryption is damaged"
UNKNOWN = "is encrypted with {}, which we do not open: save it without"
MOST_ITERATIONS, MOST_MEMORY_KIB, MOST_WORK_KIB = 10**6, 2**19, 2**22
"""Of PBKDF2, of Argon2, and of Argon2 in all its iterations: at least eight times what LibreOffice writes. A file that
asks for more would only cost time and memory."""
CHECKED = 1024
"""Bytes of a part's beginning that its checksum is of."""


class _WrongPassword(Exception):
    pass


def is_encrypted(package: Package) -> bool:
    """Whether any of its parts is."""
    return b"encryption-data" in package.content(MANIFEST)


def decrypted(package: Package, options: LoadOptions) -> bytes:
    """The XML parts of an encrypted package as a package. Raises Protected and Unreadable."""
    locks = list(_locks(package.root(MANIFEST)))
    for password in options.passwords:
        try:
            parts = {lock.part: lock.opened(package.content(lock.part), password, options) for lock in locks}
        except _WrongPassword:
            continue
        kind = {KIND: package.content(KIND), MANIFEST: b"<manifest/>"}  # what calamine takes for an .ods
        return parts[WHOLE] if WHOLE in parts else _packed(kind | parts)
    raise Protected(len(options.passwords))


def _packed(parts: dict[str, bytes]) -> bytes:
    file = BytesIO()
    with ZipFile(file, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file.getvalue()


@dataclass(frozen=True)
class _Lock:
    """How one part is encrypted."""

    part: str
    algorithm: str
    vector: bytes
    checksum: bytes
    start: str
    """The hash of the password that the key is derived from."""
    derivation: str
    salt: bytes
    key_size: int
    iterations: int
    memory_kib: int
    lanes: int

    def opened(self, content: bytes, password: str, options: LoadOptions) -> bytes:
        """The part itself. Raises _WrongPassword and Unreadable."""
        key = self._key(hashlib.new(self.start, password.encode()).digest())
        packed = self._decrypted(key, content)
        if self.checksum and self._checksum(packed[:CHECKED]) != self.checksum:
            raise _WrongPassword
        if packed.startswith(b"PK\x03\x04"):
            return packed
        try:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, options.max_member_bytes)
        except zlib.error as error:
            raise _WrongPassword from error

    def _key(self, start: bytes) -> bytes:
        work, memory = self.iterations * self.memory_kib, self.memory_kib
        if not (0 < self.iterations <= MOST_ITERATIONS and 0 < memory <= MOST_MEMORY_KIB and work <= MOST_WORK_KIB):
            raise Unreadable(DAMAGED)
        if "argon2id" not in self.derivation:
            return hashlib.pbkdf2_hmac("sha1", start, self.salt, self.iterations, self.key_size)
        from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

        derivation = Argon2id(
            salt=self.salt,
            length=self.key_size,
            iterations=self.iterations,
            lanes=self.lanes,
            memory_cost=self.memory_kib,
        )
        return derivation.derive(start)

    def _decrypted(self, key: bytes, content: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.decrepit.ciphers.algorithms import Blowfish
        from cryptography.hazmat.decrepit.ciphers.modes import CFB
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import CBC

        if self.algorithm.endswith("-gcm"):
            try:
                return AESGCM(key).decrypt(self.vector, content.removeprefix(self.vector), None)
            except InvalidTag as error:
                raise _WrongPassword from error
        if self.algorithm.endswith("-cbc"):
            padded = _run(Cipher(AES(key), CBC(self.vector)), content)
            return padded[: -padded[-1]] if padded else b""
        if "blowfish" in self.algorithm:
            return _run(Cipher(Blowfish(key), CFB(self.vector)), content)
        raise Unreadable(UNKNOWN.format(self.algorithm))

    def _checksum(self, packed: bytes) -> bytes:
        return hashlib.new("sha256" if len(self.checksum) == 32 else "sha1", packed).digest()


def _run(cipher: Any, content: bytes) -> bytes:
    decryptor = cipher.decryptor()
    return bytes(decryptor.update(content) + decryptor.finalize())


def _locks(manifest: Any) -> Iterator[_Lock]:
    """Of each XML part, and of the whole; `content.xml` first, since it is always there."""
    if next(manifest.iter("{*}keyinfo"), None) is not None:
        raise Unreadable(UNKNOWN.format("OpenPGP keys"))
    found = {}
    for entry in manifest.iter("{*}file-entry"):
        part, encryption = _said(entry).get("full-path", ""), entry.find("{*}encryption-data")
        if encryption is not None and (part.endswith(".xml") or part == WHOLE):
            found[part] = encryption
    if not found:
        raise Unreadable(DAMAGED)
    for part in sorted(found, key=lambda part: part != "content.xml"):
        try:
            yield _lock(part, found[part])
        except (ValueError, KeyError) as error:
            raise Unreadable(DAMAGED) from error


def _lock(part: str, encryption: Any) -> _Lock:
    said = {}
    for kind in ("algorithm", "start-key-generation", "key-derivation"):
        element = encryption.find(f"{{*}}{kind}")
        said[kind] = {} if element is None else _said(element)
    algorithm, start, derivation = said["algorithm"], said["start-key-generation"], said["key-derivation"]
    is_sha256 = start.get("start-key-generation-name", "").lower().endswith("sha256")
    return _Lock(
        part,
        algorithm["algorithm-name"].lower(),
        b64decode(algorithm["initialisation-vector"]),
        b64decode(_said(encryption).get("checksum", "")),
        "sha256" if is_sha256 else "sha1",
        derivation["key-derivation-name"].lower(),
        b64decode(derivation["salt"]),
        int(derivation.get("key-size", 16)),
        int(derivation.get("iteration-count") or derivation["argon2-iterations"]),
        int(derivation.get("argon2-memory", 1)),
        int(derivation.get("argon2-lanes", 1)),
    )


def _said(element: Any) -> dict[str, str]:
    """Attributes without their namespaces: Argon2's were in LibreOffice's own before they were in the standard's."""
    return {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
