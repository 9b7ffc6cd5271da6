"""Bytes of a text file → text, in whatever encoding it was written; never with a character silently lost."""

import codecs
import re
import unicodedata

# UTF-32 first: its little-endian mark begins with UTF-16's.
BYTE_ORDER_MARKS = [
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
]
CANDIDATES = ["gb18030", "big5", "cp932", "euc_jp", "cp949", "cp1252", "cp1251", "cp1250"]
# What browsers read when a page declares the name on the left: https://encoding.spec.whatwg.org/#names-and-labels
SUPERSETS = {"gb2312": "gb18030", "gbk": "gb18030", "iso8859-1": "cp1252", "ascii": "cp1252", "shift_jis": "cp932"}
# The lead bytes of GB 2312's punctuation (A1-A3) and its 3,755 common characters (B0-D7).
COMMON_CHINESE = re.compile(rb"[\xa1-\xa3\xb0-\xd7][\xa1-\xfe]")
KANA = re.compile(r"[\u3040-\u30ff]")


class UndecodableText(Exception):
    """The bytes are not text in any encoding we know."""


def decode(raw: bytes, *, declared: str | None = None) -> str:
    """Return the text of `raw` in NFC with `\\n` line ends and without NUL characters.

    `declared` is the encoding that the file itself names (an HTML page's meta tag); UTF-8 that decodes strictly wins
    over it. Raises UndecodableText when no encoding fits.
    """
    for mark, encoding in BYTE_ORDER_MARKS:
        if raw.startswith(mark):
            return _normalised(_strictly(raw, encoding))
    return _normalised(_without_mark(raw, declared))


def clean(text: str) -> str:
    """Return `text` in NFC, with `\\n` line ends, without NUL and byte order marks."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "").replace("\ufeff", "")
    return unicodedata.normalize("NFC", text)


def _normalised(text: str) -> str:
    if text.count("\x00") * 100 > len(text):
        raise UndecodableText("is binary, not text")
    return clean(text)


def _strictly(raw: bytes, encoding: str) -> str:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise UndecodableText(f"starts as {encoding} but byte {error.start} does not fit it") from error


def _without_mark(raw: bytes, declared: str | None) -> str:
    for encoding in [_utf16_without_mark(raw), "utf-8", _known(declared)]:
        if encoding and _decodes(raw, encoding):
            return raw.decode(encoding)
    guess = _guess(raw)
    if guess and _decodes(raw, guess):
        return raw.decode(guess)
    raise UndecodableText("is binary, or in no text encoding we know: save it as UTF-8")


def _utf16_without_mark(raw: bytes) -> str | None:
    """UTF-16 of mostly Latin text has a zero in every other byte."""
    sample = raw[:4096]
    half = len(sample) // 2
    if half and sample[1::2].count(0) > 0.7 * half and not sample[0::2].count(0):
        return "utf-16-le"
    if half and sample[0::2].count(0) > 0.7 * half and not sample[1::2].count(0):
        return "utf-16-be"
    return None


def _known(declared: str | None) -> str | None:
    try:
        name = codecs.lookup(declared).name if declared else None
    except LookupError:
        return None
    return SUPERSETS.get(name, name) if name else None


def _guess(raw: bytes) -> str | None:
    # In Western European text bytes above 127 stand alone or in pairs; a statistical guess on a short one is a lottery.
    runs = re.findall(rb"[\x80-\xff]+", raw)
    if max(map(len, runs), default=0) < 3:
        return "cp1252" if _decodes(raw, "cp1252") else _most_plausible(raw)
    if _decodes(raw, "euc_jp") and _is_mostly_kana(raw.decode("euc_jp")):
        return "euc_jp"
    return _most_plausible(raw)


def _decodes(raw: bytes, encoding: str) -> bool:
    try:
        raw.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _is_mostly_kana(text: str) -> bool:
    wide = [character for character in text if ord(character) > 127]
    return len(KANA.findall(text)) > 0.3 * len(wide)


def _most_plausible(raw: bytes) -> str | None:
    from charset_normalizer import from_bytes

    # Their order is by implausibility ("chaos", 0 is best), then by how much it looks like a language.
    matches = sorted(from_bytes(raw, cp_isolation=CANDIDATES), key=lambda match: (match.chaos, -match.coherence))
    names = [match.encoding for match in matches if match.chaos <= matches[0].chaos + 0.01]
    if ("gb18030" in names or not names) and _is_common_chinese(raw):
        return "gb18030"
    if not names:
        return None
    return "cp1252" if "cp1252" in names and matches[0].encoding == "cp1250" else matches[0].encoding


def _is_common_chinese(raw: bytes) -> bool:
    wide = sum(byte > 127 for byte in raw)
    return 2 * len(COMMON_CHINESE.findall(raw)) > 0.85 * wide
