"""The figures of some runs as a table for a terminal, in which Chinese takes two columns a character."""

import unicodedata
from collections.abc import Callable, Sequence

from rag.evaluation.comparison import Difference, common, differences
from rag.evaluation.figures import MEANS, STAGES, Figure, Run, figures, in_order, label, latencies
from rag.evaluation.judging import Record

Column = tuple[str, Sequence[Record]]


def columns(runs: Sequence[Run]) -> list[Column]:
    """One for each run; of a single run one for each language too."""
    if len(runs) > 1:
        return [(run.name, run.records) for run in runs]
    run = runs[0]
    return [("all", run.records), *((language, run.of_language(language)) for language in run.languages)]


def tables(runs: Sequence[Run]) -> list[str]:
    """All figures of the runs, and of several runs those of each language."""
    lines = table(columns(runs))
    for language in runs[-1].languages if len(runs) > 1 else []:
        only = [(run.name, run.of_language(language)) for run in runs]
        lines += ["", f"questions in {language}", *table([column for column in only if column[1]], latency=False)]
    return lines


def table(wanted: Sequence[Column], *, latency: bool = True) -> list[str]:
    """Figures down, columns across."""
    found = [figures(records) for _, records in wanted]
    rows = [["", *(name for name, _ in wanted)], ["questions", *(str(len(records)) for _, records in wanted)]]
    before = ""
    for name in in_order(name for one in found for name in one):
        group, text = label(name)
        if group != before:
            rows.append([group])
        before = group
        rows.append([f"  {text}", *(_shown(name, one.get(name)) for one in found)])
    if latency:
        rows += _latency_rows([records for _, records in wanted])
    return _aligned(rows)


def _shown(name: str, figure: Figure | None) -> str:
    if figure is None:
        return "–"
    return f"{figure.value:.3f}" + ("" if MEANS.fullmatch(name) else f" {figure.right:.0f}/{figure.of:.0f}")


def _latency_rows(wanted: Sequence[Sequence[Record]]) -> list[list[str]]:
    taken = [latencies(records) for records in wanted]
    there = [stage for stage in STAGES if any(stage in one for one in taken)]
    rows = [["seconds, p50 / p95"]] if there else []
    for stage in there:
        cells = [f"{one[stage].p50:.3f} / {one[stage].p95:.3f}" if stage in one else "–" for one in taken]
        rows.append([f"  {STAGES[stage]}", *cells])
    return rows


def compared(old: Run, new: Run) -> list[str]:
    """What has changed, with interval and p; of what has not, how much."""
    found = differences(old, new)
    lines = [f"{new.name} compared with {old.name}, on the {common(old, new)} questions that both were asked"]
    changed = [one for one in found if one.changed]
    if changed:
        rows = [["", "questions", "old", "new", "difference", "95 % interval", "p", ""], *map(_difference_row, changed)]
        lines += _aligned(rows)
    if same := len(found) - len(changed):
        lines.append(f"  no question counts otherwise in {same} of {len(found)} figures")
    return lines


def _difference_row(one: Difference) -> list[str]:
    group, text = label(one.name)
    ends = f"{one.low:+.3f} … {one.high:+.3f}"
    p = "<0.001" if one.p < 0.001 else f"{one.p:.3f}"
    questions = str(one.questions)
    return [
        f"  {group}: {text}",
        questions,
        f"{one.old:.3f}",
        f"{one.new:.3f}",
        f"{one.new - one.old:+.3f}",
        ends,
        p,
        one.verdict,
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right; a row of one cell is a heading."""
    wide = [max((_width(row[at]) for row in rows if at < len(row)), default=0) for at in range(max(map(len, rows)))]
    return [_line(row, wide).rstrip() for row in rows]


def _line(row: Sequence[str], wide: Sequence[int]) -> str:
    pad: Callable[[int], str] = lambda at: " " * (wide[at] - _width(row[at]))  # noqa: E731
    return "".join([row[0] + pad(0), *(f"  {pad(at)}{row[at]}" for at in range(1, len(row)))])


def _width(text: str) -> int:
    """Columns on a terminal."""
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )
