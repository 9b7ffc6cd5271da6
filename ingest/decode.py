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
# What browsers read when a page declares the name on the left: https://encoding.spec.whatwg.org/#names-and-labels
SUPERSETS = {
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "iso8859-1": "cp1252",
    "ascii": "cp1252",
    "shift_jis": "cp932",
    "big5": "big5hkscs",
    "euc_kr": "cp949",
    "iso8859-9": "cp1254",
    "tis-620": "cp874",
}
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
NOT_ASCII = re.compile(rb"[\x1b\x80-\xff]")
CONTROL_BYTE = re.compile(CONTROL.pattern.encode())
OWN_SCRIPT = {"cp949": re.compile(r"[\uac00-\ud7a3]"), "euc_jp": re.compile(r"[\u3040-\u30ff]")}
WIDE = re.compile(r"[^\x00-\x7f]")
SURROGATE = re.compile(r"[\ud800-\udfff]")
# The blocks in which nearly all text is written; the same bytes in the wrong order fall anywhere.
COMMON = re.compile(
    r"[\t\n\r\x20-\x7e\xa0-\u024f\u0370-\u06ff\u0900-\u097f\u0e00-\u0e7f\u2010-\u203b\u20ac\u2190-\u21ff"
    r"\u3000-\u30ff\u4e00-\u9fff\uac00-\ud7a3\uff00-\uffef]"
)
SAMPLE = 2**16
NEVER_IN_TEXT = 0.02
"""Control bytes: a text of one byte a character has hardly any, UTF-16 of any language has more."""
EVERYDAY = ("gb2312", "big5", "cp932", "cp949")
STRAY_NULS = 0.25
"""Of an otherwise good text; of one in UTF-16, half are NUL or its other bytes are no text."""
STAND_IN = "\v"
"""For a stray NUL while an encoding is looked for: white space that is no part of a longer character in any of them."""
JAVA_NUL = b"\xc0\x80"
"""Of "modified UTF-8", which also writes a character beyond 16 bits as two surrogates of three bytes each (CESU-8)."""


class UndecodableText(Exception):
    """The bytes are not text in any encoding we know."""


def decode(raw: bytes, *, declared: str | None = None) -> str:
    """Return the text of `raw`, cleaned as by `clean`.

    `declared` is the encoding that the file itself names (an HTML page's meta tag); UTF-8 that decodes strictly wins
    over it. Raises UndecodableText when no encoding fits.
    """
    for mark, encoding in BYTE_ORDER_MARKS:
        if raw.startswith(mark):
            return _normalised(_strictly(raw, encoding))
    without_nuls = _without_stray_nuls(raw)
    text = _without_mark(without_nuls, declared)
    return _normalised(text if without_nuls is raw else text.replace(STAND_IN, ""))


def clean(text: str) -> str:
    """Return `text` in NFC, with `\\n` line ends, without byte order marks and soft hyphens, `storable`."""
    text = storable(text)
    # At a line's end a soft hyphen is a hyphen.
    for written, meant in (("\r\n", "\n"), ("\r", "\n"), ("\ufeff", ""), ("\u00ad\n", "-\n"), ("\u00ad", "")):
        text = text.replace(written, meant)
    return unicodedata.normalize("NFC", text)


def storable(text: str) -> str:
    """The text as tokenizers and stores can take it: without NUL, and a surrogate that has lost its other half becomes
    U+FFFD; any other text is left as it is."""
    if SURROGATE.search(text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.replace("\x00", "")


def _normalised(text: str) -> str:
    nuls = text.count("\x00")
    if nuls * 100 > len(text) and (nuls > STRAY_NULS * len(text) or CONTROL.search(text.replace("\x00", ""))):
        raise UndecodableText("is binary, not text")
    return clean(text)


def _without_stray_nuls(raw: bytes) -> bytes:
    """The bytes with STAND_IN for NULs where the others are a text by themselves."""
    if not 0 < raw.count(0) <= STRAY_NULS * len(raw) or STAND_IN.encode() in raw:
        return raw
    rest, wide = raw.replace(b"\x00", b""), _wide_without_mark(raw)
    is_wide = wide and not (_decodes(rest, "utf-8") and _is_rare(raw.decode(wide, "replace")))
    return raw if is_wide or CONTROL_BYTE.search(rest) else raw.replace(b"\x00", STAND_IN.encode())


def _is_rare(text: str) -> bool:
    """Whether no one language has all of the characters: ASCII taken for UTF-16 is Chinese that nobody writes."""
    return all(text.encode(encoding, "replace").count(b"?") > text.count("?") for encoding in EVERYDAY)


def _strictly(raw: bytes, encoding: str) -> str:
    try:
        return raw.decode(encoding, "surrogatepass")
    except UnicodeDecodeError as error:
        raise UndecodableText(f"starts as {encoding} but byte {error.start} does not fit it") from error


def _without_mark(raw: bytes, declared: str | None) -> str:
    for encoding in [_wide_without_mark(raw), "utf-8"]:
        if encoding and _decodes(raw, encoding):
            text = raw.decode(encoding)
            if "\x1b$" not in text or not raw.isascii():  # the Japanese escapes of mail are ASCII
                return text
    if mended := _with_surrogates(raw):
        return mended
    _refuse_torn_utf8(raw)
    if (known := _known(declared)) and _decodes(raw, known):
        return raw.decode(known)
    guess = _guess(raw)
    if guess and _decodes(raw, guess):
        text = raw.decode(guess)
        if len(CONTROL.findall(text[:SAMPLE])) <= NEVER_IN_TEXT * min(len(text), SAMPLE):
            return text
    raise UndecodableText("is binary, or in no text encoding we know: save it as UTF-8")


def _with_surrogates(raw: bytes) -> str:
    """What is UTF-8 but for surrogates and Java's NUL, else nothing; `clean` puts pairs together."""
    rest = raw.replace(JAVA_NUL, b"")
    try:
        text = rest.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return ""
    return "" if text.isascii() else text


def _refuse_torn_utf8(raw: bytes) -> None:
    """UTF-8 with some broken bytes would come out as other characters in many an encoding."""
    for part in (_first_wide(raw), raw):  # all of it only when it begins as UTF-8
        text = part.decode("utf-8", "replace")
        broken = text.count("\ufffd")
        if 4 * broken >= len(WIDE.findall(text)) - broken:
            return
    if broken:
        first = len(text[: text.index("\ufffd")].encode())
        raise UndecodableText(f"is UTF-8 with broken characters ({broken}, the first at byte {first}): mend it")


def _first_wide(raw: bytes) -> bytes:
    """The first part that is not ASCII."""
    begin = next((match.start() for match in NOT_ASCII.finditer(raw)), 0)
    return raw[begin : begin + SAMPLE]


def _wide_without_mark(raw: bytes) -> str | None:
    """UTF-32, which hardly anything else decodes as, or UTF-16, whose characters then lie in common blocks."""
    for encoding in ("utf-32-le", "utf-32-be"):
        if raw and not len(raw) % 4 and _decodes(raw, encoding):
            return encoding
    sample = raw[:SAMPLE]
    if len(raw) % 2 or len(CONTROL_BYTE.findall(sample)) <= NEVER_IN_TEXT * len(sample):
        return None
    shares = {encoding: _common_share(sample, encoding) for encoding in ("utf-16-le", "utf-16-be")}
    best = max(shares, key=lambda encoding: shares[encoding])
    return best if shares[best] > 0.95 else None


def _common_share(sample: bytes, encoding: str) -> float:
    text = sample.decode(encoding, "replace")
    return len(COMMON.findall(text)) / len(text)


def _known(declared: str | None) -> str | None:
    try:
        name = codecs.lookup(declared).name if declared else None
    except (LookupError, ValueError):
        return None
    return SUPERSETS.get(name, name) if name and _is_text_encoding(name) else None


def _is_text_encoding(name: str) -> bool:
    """Not one of Python's own, such as base64 or rot13."""
    return codecs.lookup(name)._is_text_encoding


def _guess(raw: bytes) -> str | None:
    """What Firefox would take it for; from its first part that is not ASCII, unless the rest does not fit that."""
    part = _first_wide(raw)
    guess = _detected(part, to_the_end=raw.endswith(part))
    if not (guess and _decodes(raw, guess)):
        guess = _detected(raw, to_the_end=True)
    # Chinese has the same bytes; but Korean and Japanese are written in a script of their own, words aside.
    own = OWN_SCRIPT.get(guess or "")
    if guess and own and _decodes(raw, guess) and _decodes(raw, "gb18030"):
        text = raw.decode(guess)
        return guess if 5 * len(own.findall(text)) > len(WIDE.findall(text)) else "gb18030"
    return guess


def _detected(raw: bytes, *, to_the_end: bool) -> str | None:
    from chardetng_py import EncodingDetector

    detector = EncodingDetector()
    detector.feed(raw, last=to_the_end)
    return _known(detector.guess(tld=None, allow_utf8=False))


def _decodes(raw: bytes, encoding: str) -> bool:
    try:
        raw.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True
