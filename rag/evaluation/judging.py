"""A turn beside what was expected of it → counts: for each figure how much was right, and of how much."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from langchain_core.documents import Document

from rag.answer import Done
from rag.citations import Citation
from rag.evaluation.asking import Turn
from rag.evaluation.cases import Case
from rag.evaluation.matching import holds, overlaps, says
from rag.evaluation.ranking import ranked
from rag.grounding import GroundingOptions, answerable

Counts = dict[str, tuple[float, float]]
"""A figure's share of one question: the figure is the sum of the first over the sum of the second."""
TEXT = r"(?:answers?|articles?|context|documents?|handbook|information|manual|passages?|sources?|texts?)"
DECLINES = re.compile(
    rf"\b{TEXT} (?:do(?:es)?|did|is|are|can) ?(?:not|n['’]t)\b"
    rf"|\b(?:not|n['’]t) (?:\w+ ){{0,3}}(?:in|by|from) the {TEXT}\b"
    r"|\b(?:no|not enough|insufficient) (?:\w+ )?(?:information|mention|answer)\b"
    r"|\bunable to (?:answer|find|determine)\b"
    r"|\bI (?:do not|don['’]t|cannot|can['’]t|could not) (?:know|find|answer|have)\b"
    r"|(?:文档|文件|资料|文本|段落|原文|上文|手册|内容)[^。！？]{0,12}"
    r"(?:没有|未|无法|不)[^。！？]{0,8}(?:提|说|答|信息|找|包含|记载|规定|给出)"
    r"|无法(?:回答|确定|得知|找到)|没有(?:相关|足够的?)?(?:信息|资料|答案)",
    re.IGNORECASE,
)
"""A model's own way to say that the documents do not answer."""


@dataclass(frozen=True)
class Record:
    """One question of a run, as it is kept in JSON."""

    key: str
    question: str
    language: str | None
    follow_up: bool
    answerable: bool | None
    counts: Counts
    timings: dict[str, float]
    expected: dict[str, Any]
    found: list[dict[str, Any]] = field(default_factory=list)
    answer: str | None = None
    refused: bool = False
    citations: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""


def judge(cases: Sequence[Case], turns: Sequence[Turn], *, k: int, grounding: GroundingOptions) -> list[Record]:
    """The record of each question that was asked with `k` passages."""
    asked = list(zip(cases, turns, strict=True))
    files = ranked([_hits(case, turn, place=False) if case.file else None for case, turn in asked], k)
    places = ranked([_hits(case, turn, place=True) if has_place(case) else None for case, turn in asked], k)
    records = []
    for (case, turn), of_file, of_place in zip(asked, files, places, strict=True):
        counts = of_file | {f"place_{name}": count for name, count in of_place.items()}
        counts |= _bar(case, turn, grounding.bar) | (_answer(case, turn.done) if turn.done else {})
        asks_an_answer = turn.done or turn.error
        records.append(
            _record(case, turn, counts | ({"errors": (float(bool(turn.error)), 1.0)} if asks_an_answer else {}))
        )
    return records


def has_place(case: Case) -> bool:
    """Whether more than the file is expected."""
    return case.quote is not None or case.page is not None


def _hits(case: Case, turn: Turn, *, place: bool) -> list[bool]:
    return [_is_right(case, passage, place=place) for passage in turn.passages]


def _is_right(case: Case, passage: Document, *, place: bool) -> bool:
    about = passage.metadata
    if not _same_file(case, about.get("source", "")):
        return False
    on_page = case.page is None or about.get("page") == case.page
    return not place or (on_page and (case.quote is None or holds(passage.page_content, case.quote)))


def _same_file(case: Case, file: str) -> bool:
    return str(PurePosixPath(file)) == case.file


def _bar(case: Case, turn: Turn, bar: float) -> Counts:
    """Whether a passage reaches the bar of strict mode, as it should for a question that can be answered."""
    if case.answerable is None or turn.error:
        return {}
    passes = answerable(turn.searched, turn.passages, bar)
    return {"above_bar": (float(passes), 1.0)} if case.answerable else {"below_bar": (float(not passes), 1.0)}


def _answer(case: Case, done: Done) -> Counts:
    refused = declined(done)
    if case.answerable is False:
        warned = refused or not done.grounding.grounded
        return {"refused": (float(refused), 1.0), "refused_or_flagged": (float(warned), 1.0)}
    if case.answerable is None:
        return {}
    counts: Counts = {"answered": (float(not refused), 1.0)} | _citations(case, done)
    right = says(done.answer, pattern=case.pattern, expected=case.answer)
    if right is not None:
        counts["answer_right"] = (float(right and not refused), 1.0)
    if not refused:
        counts |= _grounding(done)
    return counts


def declined(done: Done) -> bool:
    """Whether there is no answer: a fixed refusal, or words of the model's that say so, with nothing cited."""
    return done.grounding.refused or (not done.citations and DECLINES.search(done.answer) is not None)


def _citations(case: Case, done: Done) -> Counts:
    """Precision counts the citations shown, recall the questions."""
    if not case.file:
        return {}
    shown = float(len(done.citations))
    of_file = [citation for citation in done.citations if _same_file(case, citation.file)]
    of_place = [citation for citation in of_file if _cites(case, citation)]
    return {
        "citation_file_precision": (float(len(of_file)), shown),
        "citation_precision": (float(len(of_place)), shown),
        "citation_recall": (float(bool(of_place)), 1.0),
    }


def _cites(case: Case, citation: Citation) -> bool:
    on_page = case.page is None or citation.page == case.page
    return on_page and (case.quote is None or overlaps(citation.quote, case.quote))


def _grounding(done: Done) -> Counts:
    bare = set(done.grounding.unsupported)
    cited = {(citation.answer_start, citation.answer_end) for citation in done.citations} - bare
    return {
        "sentences_cited": (float(len(cited)), float(len(cited | bare))),
        "grounded": (float(done.grounding.grounded), 1.0),
        "grounding_score": (done.grounding.score, 1.0),
    }


def _record(case: Case, turn: Turn, counts: Counts) -> Record:
    done = turn.done
    found = [
        {"file": about.get("source", ""), "page": about.get("page"), "score": about.get("score")}
        for about in (passage.metadata for passage in turn.passages)
    ]
    cited = [
        {
            "file": one.file,
            "page": one.page,
            "quote": one.quote,
            "right": _same_file(case, one.file) and _cites(case, one),
        }
        for one in (done.citations if done else [])
    ]
    return Record(
        key=case.key,
        question=case.question,
        language=case.language,
        follow_up=bool(case.history),
        answerable=case.answerable,
        counts=counts,
        timings=turn.timings,
        expected=case.model_dump(include={"answer", "pattern", "file", "page", "quote"}, exclude_none=True),
        found=found,
        answer=done.answer if done else None,
        refused=done is not None and declined(done),
        citations=cited,
        error=turn.error,
    )
