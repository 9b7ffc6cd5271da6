"""The questions that went wrong, each with what was expected and what came."""

import re
from collections.abc import Iterator, Sequence

from rag.evaluation.figures import Run
from rag.evaluation.judging import Record

LONGEST = 160
"""Characters of an answer that are shown."""


def failures(runs: Sequence[Run], most: int) -> list[str]:
    """Lines for the first `most` questions that went wrong in any of the runs, and how many more there are."""
    wrong = [(records[0], reasons) for records in _by_question(runs) if (reasons := _told(runs, records))]
    lines = []
    for record, reasons in wrong[:most]:
        name = f"{record.key}: " if record.key != record.question else ""
        lines += [f"  {name}{_cut(record.question)}", *(f"      {reason}" for reason in reasons)]
    if more := len(wrong) - min(most, len(wrong)):
        lines.append(f"  … and {more} more: --failures {len(wrong)} shows all, --json FILE writes every question")
    where = " in some run" if len(runs) > 1 else ""
    return [f"went wrong{where}: {len(wrong)} of {len(runs[0].records)} questions", *lines]


def _by_question(runs: Sequence[Run]) -> Iterator[tuple[Record, ...]]:
    return zip(*(run.records for run in runs), strict=True)


def _told(runs: Sequence[Run], records: Sequence[Record]) -> list[str]:
    """The reasons, each with the runs that have it where these are not all."""
    where: dict[str, list[str]] = {}
    for run, record in zip(runs, records, strict=True):
        for reason in _reasons(record):
            where.setdefault(reason, []).append(run.name)
    return [reason if len(names) == len(runs) else f"[{'; '.join(names)}] {reason}" for reason, names in where.items()]


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
        first = record.citations[0]
        yield f"citations: none of the right place; {_place(first['file'], first['page'])}: “{_cut(first['quote'])}”"
    if counts.get("refused_or_flagged") == 0:
        yield f"no document answers it, and it was answered: “{_cut(record.answer or '')}”"


def _among(counts: dict[str, float], name: str) -> bool:
    """Whether what is expected was found at all; True where nothing is."""
    shares = [right for figure, right in counts.items() if re.fullmatch(rf"{name}@\d+", figure)]
    return max(shares, default=1.0) > 0


def _wanted(record: Record) -> str:
    wanted = record.expected.get("answer")
    return f"“{_cut(wanted)}”" if wanted else f"/{record.expected.get('pattern')}/"


def _place(file: str, page: int | None) -> str:
    return f"{file} p. {page}" if page else file


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
