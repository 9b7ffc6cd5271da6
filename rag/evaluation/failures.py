"""The questions that went wrong, each with what was expected and what came."""

import re
from collections.abc import Iterator, Sequence

from rag.evaluation.judging import Record

LONGEST = 160
"""Characters of an answer that are shown."""


def failures(records: Sequence[Record], most: int) -> list[str]:
    """Lines for the first `most` questions that went wrong, and how many more there are."""
    wrong = [(record, reasons) for record in records if (reasons := list(_reasons(record)))]
    lines = []
    for record, reasons in wrong[:most]:
        name = f"{record.key}: " if record.key != record.question else ""
        lines += [f"  {name}{_cut(record.question)}", *(f"      {reason}" for reason in reasons)]
    if more := len(wrong) - min(most, len(wrong)):
        lines.append(f"  … and {more} more: --failures {len(wrong)} shows all, --json FILE writes every question")
    return [f"went wrong: {len(wrong)} of {len(records)} questions", *lines]


def _reasons(record: Record) -> Iterator[str]:
    counts = {name: right for name, (right, of) in record.counts.items() if of}
    if record.error:
        yield f"failed: {record.error}"
        return
    expected = record.expected
    found = ", ".join(dict.fromkeys(_place(one["file"], one["page"]) for one in record.found)) or "nothing"
    if not _among(counts, "recall"):
        yield f"source: expected {_place(expected.get('file', ''), expected.get('page'))}, found {found}"
    elif not _among(counts, "place_recall"):
        yield f"passage: expected “{_cut(expected.get('quote', ''))}”, found other passages of the file"
    if counts.get("answered") == 0:
        yield f"refused: “{_cut(record.answer or '')}”"
    elif counts.get("answer_right") == 0:
        yield f"answer: expected {_wanted(record)}, got “{_cut(record.answer or '')}”"
    if record.citations and counts.get("citation_recall") == 0:
        yield f"citations: {', '.join(dict.fromkeys(_place(one['file'], one['page']) for one in record.citations))}"
    if counts.get("refused_or_flagged") == 0:
        yield f"no document answers it, and it was answered: “{_cut(record.answer or '')}”"
    if record.answer is None and counts.get("above_bar") == 0:
        yield f"below the bar: strict mode would refuse it (best score {_best(record)})"
    if record.answer is None and counts.get("below_bar") == 0:
        yield f"no document answers it, and it is above the bar (best score {_best(record)})"


def _among(counts: dict[str, float], name: str) -> bool:
    """Whether what is expected was found at all; True where nothing is."""
    shares = [right for figure, right in counts.items() if re.fullmatch(rf"{name}@\d+", figure)]
    return max(shares, default=1.0) > 0


def _best(record: Record) -> float:
    return max((one["score"] or 0.0 for one in record.found), default=0.0)


def _wanted(record: Record) -> str:
    wanted = record.expected.get("answer")
    return f"“{_cut(wanted)}”" if wanted else f"/{record.expected.get('pattern')}/"


def _place(file: str, page: int | None) -> str:
    return f"{file} p. {page}" if page else file


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
