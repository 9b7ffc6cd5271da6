"""Numbers in a text with their units, English and Chinese, in digits and in words, as values that can be compared."""

import re
from dataclasses import dataclass

WORDS = "zero _ two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
WORDS += "eighteen nineteen twenty"
ORDINALS = "_ _ _ third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety"
VALUES = {word: float(value) for value, word in enumerate(WORDS.split())}
VALUES |= {word: float(value) for value, word in enumerate(ORDINALS.split())}
VALUES |= {word: 10.0 * value for value, word in enumerate(TENS.split())}
VALUES |= {f"{ten}-{one}": 10.0 * tens + VALUES[one] for tens, ten in enumerate(TENS.split()) if tens > 1
           for one in WORDS.split()[2:10]} | {f"{ten}-one": 10.0 * tens + 1 for tens, ten in enumerate(TENS.split())
           if tens > 1}  # fmt: skip
VALUES.pop("_")
"""Not "one", "first" and "second", which mostly do not count."""
DIGITS = {digit: value for value, digit in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}
SCALES = {"十": 10, "百": 100, "千": 1000, "万": 10_000, "亿": 100_000_000}
UNITS = {
    "hour": r"hours?|hrs?|个?小时|个?钟头",
    "day": r"days?|天",
    "week": r"weeks?|周|个?星期",
    "month": r"months?|个月",
    "year": r"years?|年",
    "minute": r"minutes?|mins?|分钟",
    "second": r"seconds?|secs?|秒",
    "percent": r"%|％|percent|per cent",
    "NOK": r"NOK|kroner|克朗",
    "EUR": r"EUR|euros?|€|欧元",
    "USD": r"USD|dollars?|\$|美元",
    "CNY": r"CNY|RMB|yuan|元|块",
    "mm": r"mm|millimet(?:re|er)s?|毫米",
    "cm": r"cm|centimet(?:re|er)s?|厘米",
    "km": r"km|kilomet(?:re|er)s?|公里|千米",
    "m": r"m|met(?:re|er)s?|米",
    "kg": r"kg|kilograms?|公斤|千克",
    "g": r"g|grams?|克",
    "l": r"lit(?:re|er)s?|升",
}
UNIT = re.compile("|".join(f"(?P<{name}>(?:{words})(?![A-Za-z]))" for name, words in UNITS.items()), re.IGNORECASE)
BEFORE = re.compile(r"(NOK|EUR|USD|CNY|RMB|€|\$)\s?$")
NUMBER = re.compile(
    r"(?P<version>\d+(?:\.\d+){2,})|(?P<digits>\d{1,3}(?:[,，]\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?P<scale>[百千万亿]?)"
    rf"|(?P<word>\b(?:{'|'.join(sorted(VALUES, key=len, reverse=True))})\b)"
    r"|(?P<han>[零〇一二两三四五六七八九十百千万]+)(?=个?[天月年周星小钟秒元块位次节支名条米克升人倍岁点号楼层]|分钟|百分)",
    re.IGNORECASE,
)
IDENTIFIER = re.compile(r"(?<![\w-])(?=[\w-]*[A-Za-z])(?=[\w-]*\d)[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*(?![\w-])", re.ASCII)
ORDINAL = re.compile(r"\d+(?:st|nd|rd|th|h|m|s|mm|cm|km|kg|g)", re.IGNORECASE)
"""What looks like an identifier and is a number."""


@dataclass(frozen=True)
class Amount:
    """A number and, where one of the table's stands beside it, its unit."""

    value: float | str
    unit: str | None

    def agrees(self, other: "Amount") -> bool:
        """Whether both say the same; an unknown unit speaks against none."""
        return self.value == other.value and (self.unit == other.unit or None in (self.unit, other.unit))


def amounts(text: str) -> list[Amount]:
    """The numbers of a text in its order; those inside identifiers (E140) are not among them."""
    text = _without_identifiers(text)
    return [Amount(_value(number), _unit(text, number)) for number in NUMBER.finditer(text) if _value(number) != 1]


def in_digits(text: str) -> str:
    """The text with its Chinese numerals as digits, so that what they count is cut into the same words."""
    return NUMBER.sub(lambda number: f"{_of_han(number['han']):g}" if number["han"] else number[0], text)


def identifiers(text: str) -> set[str]:
    """Words of letters and digits, such as part numbers and error codes, in lower case."""
    return {word.lower() for word in IDENTIFIER.findall(text) if not ORDINAL.fullmatch(word)}


def _without_identifiers(text: str) -> str:
    return IDENTIFIER.sub(lambda word: word[0] if ORDINAL.fullmatch(word[0]) else " ", text)


def _value(number: re.Match[str]) -> float | str:
    if number["version"]:
        return number["version"]
    if number["digits"]:
        return float(re.sub("[,，]", "", number["digits"])) * SCALES.get(number["scale"], 1)
    return VALUES[number["word"].lower()] if number["word"] else _of_han(number["han"])


def _of_han(numeral: str) -> float:
    """The value of a Chinese numeral, such as 二十八 or 三千五百; digits alone (二〇二六) are read one by one."""
    if not set(numeral) & SCALES.keys():
        return float("".join(str(DIGITS[digit]) for digit in numeral))
    total = section = digit = 0
    for character in numeral:
        if character in DIGITS:
            digit = DIGITS[character]
        elif character in "万亿":
            total, section, digit = (total + section + digit) * SCALES[character], 0, 0
        else:
            section, digit = section + (digit or 1) * SCALES[character], 0
    return float(total + section + digit)


def _unit(text: str, number: re.Match[str]) -> str | None:
    before = BEFORE.search(text[: number.start()])
    after = UNIT.match(text, re.compile(r"(?:st|nd|rd|th)?[\s-]{0,2}").match(text, number.end()).end())  # type: ignore[union-attr]
    unit = UNIT.match(before[1]) if before else after
    return unit.lastgroup if unit else None
