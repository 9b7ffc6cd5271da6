"""What a sentence says, as far as it can be told without a model: its words, numbers, names, negation, directions.

English and Chinese; of other languages only words and digits are compared.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from ingest.terms import terms
from rag.amounts import Amount, amounts, identifiers, in_digits

_FUNCTION_WORDS = (
    "a about all also am an and any are as at be been being but by can could did do does each every few for "
    "from get gets had has have he her here him his how i if in into is it its itself just let like may me "
    "might most must my no nor not of off on only or other our out over per shall she should so some such than "
    "that the their them then there these they this those through to too under until up us very was we were "
    "what when where whether which while who whom whose why will with within without would you your "
    "的 了 是 在 和 与 及 也 都 就 把 被 对 从 向 为 于 等 个 该 其 之 而 或 且 并 由 到 "
    "至 有 没 没有 不 未 无 得 可 可以 须 必须 需 需要 应 应该 会 能 将 每 一 这 那 它 他 她 "
    "您 你 我 们 我们 他们 它们 请 着 过 吗 呢 吧 如果 时 时候 另 另外 还 又 所 以 不得 不能 "
    "不会 不是 不可 不可以 "
)
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
CLAUSE_END = re.compile(r"[,;:，、；：](?!\d)|\b(?:and|but|while|whereas)\b|而|但是?", re.IGNORECASE)
NEGATION = re.compile(
    r"\b(?:not|no|never|none|nobody|nothing|neither|nor|cannot|without|forbidden|prohibited)\b|n['’]t\b"
    r"|不(?!锈|同|仅|但|过|少于|低于)|没(?!收)|未(?![来满])|无(?!线|论|锡)|非(?!常|洲)|禁止|严禁|(?<![特区级类个分识告])别(?=人)?|勿",
    re.IGNORECASE,
)
DIRECTIONS = {
    "least": r"at least|no(?:t)? (?:less|fewer) than|minimum|至少|最少|不少于|不低于",
    "most": r"at most|no(?:t)? more than|up to|not exceed|maximum|至多|最多|不得?超过|不多于|不高于",
    "above": r"more than|above|exceed(?:s|ing)?|longer than|高于|超过|大于|多于|以上",
    "below": r"less than|fewer than|below|under|shorter than|低于|少于|小于|不到|以下",
    "before": r"\bbefore\b|(?<!目)(?<!提)(?<!以)前(?!往|台|门)|以前",
    "after": r"\bafter\b|(?<!售)(?<!以)后(?!门|果|台)|以后",
}
OPPOSITE = {
    "least": {"most", "below"},
    "most": {"least", "above"},
    "above": {"below", "most"},
    "below": {"above", "least"},
    "before": {"after"},
    "after": {"before"},
}
DIRECTION = re.compile("|".join(f"(?P<{name}>{words})" for name, words in DIRECTIONS.items()), re.IGNORECASE)
PASSIVE = re.compile(r"\bby\b|被|由", re.IGNORECASE)
NAME = re.compile(r"(?<![.!?:\n] )(?<!^)(?<![\w'’])[A-Z][\w'’]+(?: \d+\b(?! ?%))?")
AUXILIARY = re.compile(
    r"\b(?:is|are|was|were|has|have|had|must|may|can|could|will|would|should|shall|do|does|did)\b", re.IGNORECASE
)
LINKED = re.compile(r"[是为叫由到在]")
PRONOUN = re.compile(r"(?:It|They|He|She|This|These|Those|That|Its|Their|His|Her)\b|它|他|她|其|该|这")
HAN = re.compile(r"[\u3400-\u9fff]")


@dataclass(frozen=True)
class Statement:
    """A sentence, or a clause of one."""

    text: str

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Stems of its words in their order, without function words and numbers."""
        return tuple(_words(self.text))

    @cached_property
    def terms(self) -> frozenset[str]:
        return frozenset(self.words)

    @cached_property
    def amounts(self) -> list[Amount]:
        return amounts(_NAME_NUMBER.sub(r"\1", self.text))

    @cached_property
    def designations(self) -> set[str]:
        """Names that end in a number ("Terrano 3"), part numbers, error codes."""
        return identifiers(self.text) | {" ".join(name[0].lower().split()) for name in _NAME_NUMBER.finditer(self.text)}

    @cached_property
    def names(self) -> set[str]:
        """Stems of the words that a capital letter or, in Chinese, the word before makes a name or what is named."""
        named = [word for name in NAME.findall(self.text) for word in _words(name)]
        linked = (_words(self.text[link.end() : link.end() + 12])[:1] for link in LINKED.finditer(self.text))
        return {*named, *(word for words in linked for word in words)}

    @cached_property
    def subject(self) -> set[str]:
        """Stems of the words before its first auxiliary verb, else its first one."""
        auxiliary = AUXILIARY.search(self.text)
        before = _words(self.text[: auxiliary.start()]) if auxiliary and not HAN.search(self.text) else []
        return set(before or self.words[:1])

    @cached_property
    def directions(self) -> set[str]:
        return {str(match.lastgroup) for match in DIRECTION.finditer(self.text)}

    @cached_property
    def negated(self) -> bool:
        return len(NEGATION.findall(DIRECTION.sub(" ", self.text))) % 2 == 1

    @cached_property
    def passive(self) -> bool:
        return bool(PASSIVE.search(self.text))

    @cached_property
    def clauses(self) -> list["Statement"]:
        return [Statement(part) for part in CLAUSE_END.split(self.text) if part.strip(" .。！!")]

    @property
    def leans_on_the_one_before(self) -> bool:
        """It begins with a pronoun."""
        return bool(PRONOUN.match(self.text))


_NAME_NUMBER = re.compile(
    r"\b([A-Z][a-z]+) \d{1,2}\b(?![.,]\d|:| ?%| [A-Z]{3}\b)(?!\s*(?:hours?|days?|years?|months?))"
)


def contradicts(claim: Statement, quote: Statement) -> bool:
    """Whether the quote says another number, name, direction or the opposite of the claim, or turns its parts about."""
    return (
        not all(any(amount.agrees(other) for other in quote.amounts) for amount in claim.amounts)
        or _other_direction(claim, quote)
        or claim.negated != _relevant(claim, quote).negated
        or _of_another(claim, quote)
        or _turned(claim, quote)
    )


def _other_direction(claim: Statement, quote: Statement) -> bool:
    return any(OPPOSITE[side] & quote.directions and side not in quote.directions for side in claim.directions)


def _relevant(claim: Statement, quote: Statement) -> Statement:
    """The clauses of the quote that the claim is about."""
    shared = [len(claim.terms & clause.terms) for clause in quote.clauses]
    most = max(shared, default=0)
    about = [clause.text for clause, number in zip(quote.clauses, shared, strict=True) if 2 * number >= most]
    return Statement(" , ".join(about))


def _of_another(claim: Statement, quote: Statement) -> bool:
    """Whether a number that is claimed of one thing is said of another one: "6 short, 12 long" against "12 short"."""
    for amount in claim.amounts:
        holding = [clause for clause in quote.clauses if any(amount.agrees(other) for other in clause.amounts)]
        if holding and all(_has_its_own_subject(clause, claim, quote) for clause in holding):
            return True
    return False


def _has_its_own_subject(clause: Statement, claim: Statement, quote: Statement) -> bool:
    if not clause.words or clause.words[0] in claim.terms:
        return False
    siblings = [other for other in quote.clauses if other is not clause and other.amounts]
    return any((claim.terms - clause.terms) & sibling.terms for sibling in siblings)


def _turned(claim: Statement, quote: Statement) -> bool:
    """Whether two parts have changed places about a third while the verb's voice stayed: who does what to whom."""
    if claim.passive != quote.passive:
        return False
    common = _distinct([word for word in claim.words if word in quote.terms])
    place = {word: at for at, word in reversed(list(enumerate(quote.words)))}
    falling = [1] * len(common)  # longest run of the claim's words that stand the other way round in the quote
    for at, word in enumerate(common):
        earlier = [falling[before] for before in range(at) if place[common[before]] > place[word]]
        falling[at] = 1 + max(earlier, default=0)
    return max(falling, default=0) >= 3


def _distinct(words: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(words))


def _words(text: str) -> list[str]:
    found = terms(in_digits(text))
    return [stem(term) for term in found if term not in FUNCTION_WORDS and not any(map(str.isdigit, term))]


@cache
def stem(term: str) -> str:
    """An English word without its ending (Snowball's stemmer, as tantivy has it); any other term as it is."""
    return (_analyzer().analyze(term) or [term])[0] if term.isascii() else term


@cache
def _analyzer() -> Any:
    from tantivy import Filter, TextAnalyzerBuilder, Tokenizer

    return TextAnalyzerBuilder(Tokenizer.raw()).filter(Filter.stemmer("English")).build()
