"""Two runs of the same questions: what differs, and whether by more than chance."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingest.command import CommandRefused
from rag.evaluation.figures import WORSE_WHEN_HIGHER, Run, in_order
from rag.evaluation.judging import Record
from rag.evaluation.resampling import ENDS, SAMPLES, drawn_again, swapped

FORMAT = 1
"""Raise it when the JSON is laid out otherwise."""
LEVEL = 0.05


class BadRun(CommandRefused):
    """A file is no JSON of `groundwell eval`, or has no run to compare with."""


@dataclass(frozen=True)
class Difference:
    """A figure of two runs, over the questions that count for it in both."""

    name: str
    old: float
    new: float
    low: float
    high: float
    """Ends of the difference's 95 % interval: percentile bootstrap over the questions (Efron and Tibshirani 1993)."""
    p: float
    """How often as large a difference comes out when each question's two counts are swapped or not by a coin: the
    paired permutation test, as Smucker, Allan and Carterette 2007 advise for retrieval."""
    questions: int
    changed: int
    """Questions whose counts differ."""

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.p >= LEVEL:
            return "noise" if self.changed else "same"
        return "better" if (self.new > self.old) != (self.name in WORSE_WHEN_HIGHER) else "worse"


def differences(old: Run, new: Run) -> list[Difference]:
    """One for each figure that both have."""
    before = {record.key: record for record in old.records}
    pairs = [(before[record.key], record) for record in new.records if record.key in before]
    names = in_order(name for one, other in pairs for name in one.counts.keys() & other.counts.keys())
    return [found for name in names if (found := _difference(name, pairs))]


def common(old: Run, new: Run) -> int:
    """How many questions both were asked."""
    return len({record.key for record in old.records} & {record.key for record in new.records})


def _difference(name: str, pairs: Sequence[tuple[Record, Record]]) -> Difference | None:
    import numpy

    both = [(*one.counts[name], *two.counts[name]) for one, two in pairs if name in one.counts and name in two.counts]
    counts = numpy.array(both, dtype=float)
    sums = counts.sum(axis=0)
    if not (sums[1] and sums[3]):
        return None
    low, high = numpy.nanpercentile(_gained(drawn_again(counts)), ENDS)
    return Difference(
        name,
        float(sums[0] / sums[1]),
        float(sums[2] / sums[3]),
        float(low),
        float(high),
        _p(counts),
        len(both),
        int((counts[:, :2] != counts[:, 2:]).any(axis=1).sum()),
    )


def _gained(sums: Any) -> Any:
    """New minus old of rows of four sums; NaN where one has nothing to count."""
    import numpy

    with numpy.errstate(invalid="ignore", divide="ignore"):
        return sums[..., 2] / sums[..., 3] - sums[..., 0] / sums[..., 1]


def _p(counts: Any) -> float:
    import numpy

    least = abs(_gained(counts.sum(axis=0))) - 1e-12
    return float((1 + (numpy.abs(_gained(swapped(counts))) >= least).sum()) / (1 + SAMPLES))


def read_runs(file: Path) -> list[Run]:
    """The runs that `--json` has written, each with the file's name. Raises BadRun and OSError."""
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
        if read["format"] != FORMAT:
            raise BadRun(f"{file} was written by another version of Groundwell: run eval again with --json")
        runs = [_run(one, file.stem) for one in read["runs"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRun(f"{file} is not what `groundwell eval --json FILE` writes") from error
    if not runs:
        raise BadRun(f"{file} holds no run")
    return runs


def _run(read: dict[str, Any], file: str) -> Run:
    records = []
    for one in read["records"]:
        counts = {str(name): (float(right), float(of)) for name, (right, of) in one["counts"].items()}
        timings = {str(stage): float(seconds) for stage, seconds in one["timings"].items()}
        records.append(Record(**one | {"counts": counts, "timings": timings}))
    return Run(f"{file}: {read['name']}", int(read["k"]), dict(read["swept"]), records)


def counterpart(new: str, old: Sequence[Run]) -> Run:
    """The old run to compare one of that name with: that of the same name, else the only one. Raises BadRun."""
    names = [run.name.partition(": ")[2] for run in old]
    if new in names:
        return old[names.index(new)]
    if len(old) > 1:
        raise BadRun(f"none of the runs to compare with is called {new!r}: there are {', '.join(map(repr, names))}")
    return old[0]
