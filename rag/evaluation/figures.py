"""What a run comes to: each figure over all questions and over those of a language, and how long it took."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rag.evaluation.judging import Record

GROUPS: dict[str, dict[str, str]] = {
    "retrieval": {
        r"recall@(\d+)": "right file among the first {}",
        "mrr": "right file, reciprocal rank (MRR)",
        "ndcg": "right file, nDCG",
        r"place_recall@(\d+)": "right place among the first {}",
        "place_mrr": "right place, reciprocal rank",
        "place_ndcg": "right place, nDCG",
        "above_bar": "answerable, above the bar",
        "below_bar": "unanswerable, below the bar",
    },
    "citations": {
        "citation_file_precision": "shown ones of the right file",
        "citation_precision": "shown ones of the right place",
        "citation_recall": "questions with a right one",
        "sentences_cited": "sentences with one",
    },
    "grounding": {"grounded": "answers grounded", "grounding_score": "their score"},
    "answers": {
        "answer_right": "right",
        "answered": "answerable, answered",
        "refused": "unanswerable, refused",
        "refused_or_flagged": "unanswerable, refused or flagged",
        "errors": "failed",
    },
}
"""Names of all figures, as patterns, with what the table calls them."""
MEANS = re.compile(r".*(?:mrr|ndcg|score)")
"""Figures that are no counts of things."""
WORSE_WHEN_HIGHER = {"errors"}
STAGES = {"condense": "condense (follow-ups)", "retrieve": "retrieve", "first_token": "first token", "total": "whole"}


@dataclass(frozen=True)
class Figure:
    """A figure, made of so many."""

    value: float
    right: float
    of: float


@dataclass(frozen=True)
class Latency:
    """Seconds in which half of the turns, and 19 in 20, were through a stage."""

    p50: float
    p95: float
    turns: int


@dataclass(frozen=True)
class Run:
    """All questions asked once, with one variant of the settings."""

    name: str
    k: int
    swept: dict[str, str]
    records: list[Record]

    @property
    def languages(self) -> list[str]:
        """Those of the questions, where there are several."""
        found = sorted({record.language for record in self.records if record.language})
        return found if len(found) > 1 else []

    def of_language(self, language: str) -> list[Record]:
        """The questions in it."""
        return [record for record in self.records if record.language == language]


def figures(records: Iterable[Record]) -> dict[str, Figure]:
    """Every figure of which there is anything to count, in the order of GROUPS."""
    sums: dict[str, tuple[float, float]] = {}
    for record in records:
        for name, (right, of) in record.counts.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + right, before[1] + of)
    return {name: Figure(sums[name][0] / sums[name][1], *sums[name]) for name in in_order(sums) if sums[name][1]}


def in_order(names: Iterable[str]) -> list[str]:
    """Names of figures in the order of GROUPS; a name with a number behind those with a smaller one."""
    patterns = [pattern for group in GROUPS.values() for pattern in group]

    def place(name: str) -> tuple[int, int]:
        at = next(at for at, pattern in enumerate(patterns) if re.fullmatch(pattern, name))
        return at, int(name.partition("@")[2] or 0)

    return sorted(set(names), key=place)


def is_figure(name: str) -> bool:
    """Whether a figure may be called so."""
    return any(re.fullmatch(pattern, name) for group in GROUPS.values() for pattern in group)


def label(name: str) -> tuple[str, str]:
    """A figure's group and what the table calls it."""
    for group, known in GROUPS.items():
        for pattern, text in known.items():
            if found := re.fullmatch(pattern, name):
                return group, text.format(*found.groups())
    raise KeyError(name)


def latencies(records: Sequence[Record]) -> dict[str, Latency]:
    """How long each stage took, of the turns that went through it; `first_token` and `total` from the turn's start."""
    import numpy

    found = {}
    for stage in STAGES:
        rewritten = (record for record in records if record.follow_up or stage != "condense")
        if seconds := [record.timings[stage] for record in rewritten if stage in record.timings]:
            p50, p95 = numpy.percentile(seconds, [50, 95])
            found[stage] = Latency(round(float(p50), 4), round(float(p95), 4), len(seconds))
    return found


def as_json(run: Run) -> dict[str, Any]:
    """A run for programs, and to be compared with later ones."""
    from dataclasses import asdict

    def told(records: Sequence[Record]) -> dict[str, Any]:
        found = {name: asdict(one) | {"value": round(one.value, 6)} for name, one in figures(records).items()}
        return {"questions": len(records), "figures": found}

    return {
        "name": run.name,
        "k": run.k,
        "swept": run.swept,
        **told(run.records),
        "latency": {stage: asdict(one) for stage, one in latencies(run.records).items()},
        "languages": {language: told(run.of_language(language)) for language in run.languages},
        "records": [asdict(record) for record in run.records],
    }
