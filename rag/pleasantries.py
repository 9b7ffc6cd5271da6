"""Thanks, greetings and the like, in English and Chinese: which messages say nothing else, and which ask nothing."""

import re

from ingest.terms import terms

WORDS = (
    r"(?:many )?thanks|thank you|thx|ok(?:ay)?|all right|alright|got it|i see|great|perfect|cool|wow|nice|well done|"
    r"hi|hello|hey|good (?:morning|afternoon|evening|night|day)|(?:good)?bye|see you|no (?:worries|problem)|"
    r"you'?re welcome|那先这样|那就这样|先这样|谢|多谢|感谢|好的|好吧|好嘞|行，|嗯|哦|明白|知道了|了解|收到|太好了|"
    r"太棒|你好|您好|嗨|早上好|上午好|下午好|晚上好|早安|晚安|再见|拜拜|不客气|没关系|没事|辛苦|哈哈|厉害"
)
BESIDE = r"you|very much|so much|a lot|there|how are you|好|你|您|了|啊|呀|吗"
"""What stands with them and says no more."""
PLEASANTRY = re.compile(rf"\W*(?:{WORDS})(?![a-z])", re.IGNORECASE)
SMALL_TALK = re.compile(rf"(?:\W*(?:{WORDS}|{BESIDE})(?![a-z]))+\W*", re.IGNORECASE)
ASKS = re.compile(
    r"[?？]|\b(what|who|whose|whom|which|when|where|why|how|tell|show|list|explain|give|find|need to|want)\b|"
    r"什么|谁|哪|几|多少|多久|多大|多长|怎么|怎样|为什么|吗|呢|请问|告诉|介绍|说明|解释|列出|我问",
    re.IGNORECASE,
)
LONGEST = 12
"""Terms: a longer message says more than thanks."""


def is_pleasantry(message: str) -> bool:
    """Whether a message begins with thanks, hello or the like, and asks for nothing."""
    if not PLEASANTRY.match(message) or ASKS.search(message):
        return False
    return len(set(terms(message))) <= LONGEST


def is_small_talk(message: str) -> bool:
    """Whether a message is nothing but thanks, hello or the like."""
    return bool(SMALL_TALK.fullmatch(message))
