"""How strictly an answer keeps to the documents, and how far one did: decided by program, without a model.

| mode | no passage reaches the bar | sentences without evidence | `grounded` is true when |
|---|---|---|---|
| `strict` | fixed refusal, no model call | cut (or flagged); nothing left: refusal | all that it states is supported |
| `balanced` | the model is told to say so; nothing found, no earlier turn: refusal | flagged | at least half of it is |
| `open` | the model may answer from what it knows | flagged | anything of it is |

"Of it" is by words and numbers. A refusal and an answer that states nothing are not grounded. The small profile cuts
in balanced mode too, and where nothing is left it quotes the nearest sentence, or, with no passage at the bar, refuses.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.documents import Document
from pydantic import Field

from ingest.relevance import BAR
from llm.options import Options
from rag.amounts import identifiers
from rag.citations import Sentence, UnverifiedMark
from rag.pleasantries import is_small_talk

Mode = Literal["strict", "balanced", "open"]

RULES: dict[Mode, str] = {
    "strict": "",
    "balanced": "",
    "open": (
        "Where the passages do not hold the answer, answer from what you know, and say that this is not from the "
        "documents."
    ),
}
"""What a mode adds to the system text."""
REFUSALS = {
    "en": "The documents do not answer this question.",
    "zh": "文档中没有这个问题的答案。",
    "ja": "文書にはこの質問の答えがありません。",
    "ko": "문서에 이 질문에 대한 답이 없습니다.",
    "ru": "В документах нет ответа на этот вопрос.",
}
GREETINGS = {
    "en": "Hello! Ask me a question about the documents.",
    "zh": "您好！请提出有关文档的问题。",
}
"""What small talk gets where the model is not to speak without documents."""
SCRIPTS = {
    "ja": r"[\u3041-\u30fa]",
    "zh": r"[\u3400-\u9fff]",
    "ko": r"[\uac00-\ud7af]",
    "ru": r"[\u0400-\u04ff]",
}
"""By which letters a question's language is told; `en` stands for all others."""


class GroundingOptions(Options):
    """How strictly answers keep to the documents."""

    mode: Mode = Field("balanced", description="strict, balanced or open; a request may say otherwise")
    unsupported: Literal["cut", "flag"] = Field("cut", description="sentences without evidence in strict mode")
    bar: float = Field(BAR, ge=0, le=1, description="relevance that a passage must reach for an answer in strict mode")
    likelihood: float = Field(
        0.35,
        ge=0,
        le=1,
        description="least likelihood that the passages answer the question, for an answer in strict mode",
    )
    refusals: dict[str, str] = Field({}, description="strict mode's refusal by language: en (also any other), zh …")

    def refusal(self, question: str) -> str:
        """The fixed refusal in the question's language, else in that of `en`."""
        return _in_language(question, REFUSALS | self.refusals)


@dataclass(frozen=True)
class Grounding:
    """How far an answer rests on the documents."""

    mode: Mode
    grounded: bool
    score: float
    """Mean of the sentences' evidence, weighed by what they state, in [0, 1]."""
    refused: bool
    unsupported: list[tuple[int, int]]
    """Start and end of each sentence that states something without evidence, in characters of the answer."""
    unverified: list[UnverifiedMark]


def answerable(question: str, passages: Iterable[Document], bar: float) -> bool:
    """Whether a passage is good enough to answer from: its score reaches the bar (without a score it does), and each
    code that the question names (E305, HP-1024) stands in one of the passages."""
    good = [passage for passage in passages if (passage.metadata.get("score") or 0) >= bar or not _scored(passage)]
    there = set().union(*(identifiers(f"{one.page_content} {one.metadata.get('source', '')}") for one in good))
    return bool(good) and identifiers(question) <= there


def _scored(passage: Document) -> bool:
    return passage.metadata.get("score") is not None


def reply_without_model(
    question: str,
    searched: str,
    passages: Sequence[Document],
    options: GroundingOptions,
    *,
    refuses: bool,
    likelihood: float = 1.0,
) -> str | None:
    """What is answered by program where only the documents' words count: small talk, and, if it `refuses`, where no
    passage is good enough or an answer in them is not likely; else None.

    `searched` is the question that the passages were found for, `likelihood` what `rag.likelihood` says of them.
    """
    if is_small_talk(question):
        return _in_language(question, GREETINGS)
    answers = likelihood >= options.likelihood and answerable(searched, passages, options.bar)
    return options.refusal(question) if refuses and not answers else None


def _in_language(question: str, table: Mapping[str, str]) -> str:
    languages = [language for language, letters in SCRIPTS.items() if re.search(letters, question)]
    return next((table[language] for language in languages if language in table), table["en"])


def judge(mode: Mode, sentences: Sequence[Sentence], unverified: list[UnverifiedMark], *, refused: bool) -> Grounding:
    """How far these sentences rest on their evidence."""
    stated = sum(sentence.weight for sentence in sentences)
    supported = sum(sentence.weight for sentence in sentences if sentence.support)
    score = sum(sentence.weight * sentence.support for sentence in sentences) / stated if stated else 0.0
    share = supported / stated if stated and not refused else 0.0
    least: dict[Mode, Any] = {"strict": share == 1, "balanced": share >= 0.5, "open": share > 0}
    unsupported = [(one.start, one.end) for one in sentences if one.weight and not one.support and not refused]
    return Grounding(mode, least[mode], round(min(score, 1.0), 3), refused, unsupported, unverified)
