"""What typesetting has put into words, taken out of running text: ligatures, and hyphens at the ends of lines."""

import re

from ingest.decode import clean

LIGATURES = {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"}
LIGATURE = re.compile("|".join(LIGATURES))
LOWER = "[a-zß-öø-ÿāăąćĉċčďđēĕėęěĝğġģĥħĩīĭįıĵķĺļľŀłńņňōŏőœŕŗřśŝşšţťŧũūŭůűųŵŷźżž]"
# In "ein- und ausgehen" the hyphen stands for what follows later.
GOES_ON = rf"(?!(?:und|oder|bis|sowie|and|or|to|et|ou|y|o|e)\b){LOWER}"
HYPHENATED = re.compile(rf"(?<={LOWER})[-\u2010][ \t]*\n[ \t]*(?={GOES_ON})")
WORD_ON_LINES = re.compile(rf"(?<={LOWER})(?:[-\u2010]\n{GOES_ON}(?:(?![-\u2010]\n{GOES_ON})\S)*)+[ \t]*")
LINE_END = re.compile(r"[-\u2010]\n")


def without_ligatures(text: str) -> str:
    """The text with the letters of ligatures one by one."""
    return LIGATURE.sub(lambda match: LIGATURES[match[0]], text)


def readable(text: str) -> str:
    """`clean`, without ligatures."""
    return without_ligatures(clean(text))


def rejoined(text: str) -> str:
    """Readable text in which a word that a line's end had cut in two is whole; the two lines become one."""
    return HYPHENATED.sub("", readable(text))


def rejoined_in_lines(text: str) -> str:
    """The same with as many lines as before, for text whose lines are a file's: the line ends after the word."""
    return WORD_ON_LINES.sub(_before_its_end, readable(text))


def _before_its_end(match: re.Match[str]) -> str:
    word, ends = LINE_END.subn("", match[0].rstrip(" \t"))
    return word + "\n" * ends
