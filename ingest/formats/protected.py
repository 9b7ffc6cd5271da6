"""Office files behind a password → the files they are."""

from io import BytesIO

from ingest.document import Protected, Unreadable

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def opened(raw: bytes, passwords: tuple[str, ...], *, old: bool = False) -> bytes:
    """`raw` itself when it is not encrypted. Raises Protected and, unless `old`, Unreadable for a file of Office 97 to
    2003."""
    if not raw.startswith(OLE):
        return raw
    from msoffcrypto import OfficeFile
    from msoffcrypto.exceptions import DecryptionError, InvalidKeyError

    try:
        file = OfficeFile(BytesIO(raw))
        encrypted = file.is_encrypted()
    except Exception as error:  # whatever it meets in an OLE file that it does not know
        raise Unreadable(f"is broken or not what its suffix says ({error})") from error
    if not encrypted and old:
        return raw
    if not encrypted:
        raise Unreadable("is in the format of Office 97 to 2003: save it in today's")
    for password in passwords:
        plain = BytesIO()
        try:
            file.load_key(password=password, verify_password=True)
            file.decrypt(plain)
        except (InvalidKeyError, DecryptionError):
            continue
        return plain.getvalue()
    raise Protected(len(passwords))
