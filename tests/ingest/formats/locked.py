"""OpenDocument files behind a password, encrypted as the standard says and its programs do."""

import hashlib
import zipfile
import zlib
from base64 import b64encode
from io import BytesIO
from typing import Any

from cryptography.hazmat.decrepit.ciphers.algorithms import Blowfish
from cryptography.hazmat.decrepit.ciphers.modes import CFB
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

SALT, SHORT_VECTOR, MIDDLE_VECTOR, VECTOR = b"salt of 16 bytes", b"eight by", b"twelve bytes", b"vector of 16 byt"
ENTRY = '<m:file-entry m:full-path="{}"><m:encryption-data {}>{}</m:encryption-data></m:file-entry>'
NAMES = (
    'xmlns:m="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"'
    ' xmlns:l="urn:org:documentfoundation:names:experimental:office:xmlns:loext:1.0"'
)
PBKDF2 = '<m:key-derivation m:key-derivation-name="PBKDF2" m:salt="{}" m:iteration-count="1000" m:key-size="{}"/>'
ARGON2 = (
    '<m:key-derivation m:key-derivation-name="urn:org:documentfoundation:names:experimental:office:manifest:argon2id"'
    ' m:key-size="32" m:salt="{}" l:argon2-iterations="1" l:argon2-memory="64" l:argon2-lanes="4"/>'
)
ALGORITHM = '<m:algorithm m:algorithm-name="{}" m:initialisation-vector="{}"/>'
START = '<m:start-key-generation m:start-key-generation-name="http://www.w3.org/2000/09/xmldsig#sha256"/>'


def with_aes(package: bytes, password: str) -> bytes:
    """As LibreOffice 3.5 and later write it: each part by itself, AES in CBC, PBKDF2."""
    key = hashlib.pbkdf2_hmac("sha1", hashlib.sha256(password.encode()).digest(), SALT, 1000, 32)

    def locked(part: str, content: bytes) -> tuple[bytes, str]:
        packed = deflated(content)
        padding = 16 - len(packed) % 16
        padded = packed + bytes(padding - 1) + bytes([padding])
        algorithm = ALGORITHM.format("http://www.w3.org/2001/04/xmlenc#aes256-cbc", base64(VECTOR))
        checked = f'm:checksum="{base64(hashlib.sha256(packed[:1024]).digest())}"'
        about = algorithm + START + PBKDF2.format(base64(SALT), 32)
        return run(Cipher(AES(key), CBC(VECTOR)), padded), ENTRY.format(part, checked, about)

    return each_part(package, locked)


def with_blowfish(package: bytes, password: str) -> bytes:
    """As Apache OpenOffice writes it: each part by itself, Blowfish."""
    key = hashlib.pbkdf2_hmac("sha1", hashlib.sha1(password.encode()).digest(), SALT, 1000, 16)

    def locked(part: str, content: bytes) -> tuple[bytes, str]:
        packed = deflated(content)
        checked = f'm:checksum="{base64(hashlib.sha1(packed[:1024]).digest())}"'
        about = ALGORITHM.format("Blowfish CFB", base64(SHORT_VECTOR)) + PBKDF2.format(base64(SALT), 16)
        return run(Cipher(Blowfish(key), CFB(SHORT_VECTOR)), packed), ENTRY.format(part, checked, about)

    return each_part(package, locked)


def with_argon2(package: bytes, password: str) -> bytes:
    """As LibreOffice 24.8 and later can write it: the whole package is one part, AES in GCM, Argon2id."""
    derivation = Argon2id(salt=SALT, length=32, iterations=1, lanes=4, memory_cost=64)
    key = derivation.derive(hashlib.sha256(password.encode()).digest())
    about = ALGORITHM.format("http://www.w3.org/2009/xmlenc11#aes256-gcm", base64(MIDDLE_VECTOR)) + START
    entry = ENTRY.format("encrypted-package", "", about + ARGON2.format(base64(SALT)))
    content = MIDDLE_VECTOR + AESGCM(key).encrypt(MIDDLE_VECTOR, deflated(package), None)
    return zipped({"encrypted-package": content}, entry)


def each_part(package: bytes, locked: Any) -> bytes:
    with zipfile.ZipFile(BytesIO(package)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    del parts["META-INF/manifest.xml"]
    xml = {name: locked(name, content) for name, content in parts.items() if name.endswith(".xml")}
    return zipped(parts | {name: content for name, (content, _) in xml.items()}, "".join(e for _, e in xml.values()))


def zipped(parts: dict[str, bytes], entries: str) -> bytes:
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
        archive.writestr("META-INF/manifest.xml", f"<m:manifest {NAMES}>{entries}</m:manifest>")
    return file.getvalue()


def deflated(content: bytes) -> bytes:
    return zlib.compress(content, wbits=-zlib.MAX_WBITS)


def run(cipher: Any, content: bytes) -> bytes:
    encryptor = cipher.encryptor()
    return bytes(encryptor.update(content) + encryptor.finalize())


def base64(content: bytes) -> str:
    return b64encode(content).decode()
