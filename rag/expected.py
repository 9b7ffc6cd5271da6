"""What kind of thing a question asks for, a number, a time or a person, by its words, in English and Chinese."""

import re

from rag.amounts import NUMBER

MEASURES = "price|cost|size|length|width|height|weight|diameter|temperature|speed|force|distance|age|limit|number"
ASKED = {
    "number": re.compile(
        r"\bhow (?:many|much|long|old|far|large|big|high|deep|wide|heavy|fast|often|tight)\b"
        rf"|\bwhat\b.*\b(?:{MEASURES})s?\b|[几多](?:少|长|久|大|高|远|重|宽|深|快|[天年个次节支台度])?(?=\S)",
        re.IGNORECASE,
    ),
    "time": re.compile(
        r"\bwhen\b|\b(?:which|what) (?:date|day|weekday|month|year|time)\b|什么时候|何时|哪[一]?[年月天日]|几[点号月]",
        re.IGNORECASE,
    ),
    "person": re.compile(r"\bwho(?:m|se)?\b|谁|什么名字", re.IGNORECASE),
}
"""By which words a question asks for it."""
TIME = re.compile(
    r"\d|\b(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day|january|february|march|april|may|june|july|august|september"
    r"|october|november|december)\b|星期|周[一二三四五六日]|月",
    re.IGNORECASE,
)
PERSON = re.compile(
    r"(?<!^)(?<![.!?] )\b[A-Z]\w+ [A-Z]\w+|[\u3400-\u9fff]{2,3}(?:先生|女士)|[是为由叫][\u3400-\u9fff]{2,3}(?=[，。、])"
)
HOLDS = {"number": NUMBER, "time": TIME, "person": PERSON}
"""What a sentence that holds it holds."""


def holds_what_is_asked(question: str, sentence: str) -> bool:
    """Whether a sentence holds one of the kinds of thing that the question asks for; true when it asks for none."""
    asked = [kind for kind, words in ASKED.items() if words.search(question)]
    return not asked or any(HOLDS[kind].search(sentence) for kind in asked)


ASKING = re.compile(r"many|much|什么.*|多少.*|[几哪谁怎何].*|多|多[长久大高远].*|为什么|叫|是否|有没有")
"""Words that ask and are not asked for, beside the function words of both languages."""
