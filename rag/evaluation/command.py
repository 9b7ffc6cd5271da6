"""`groundwell eval FILE`: its arguments, what is checked before anything starts, and what it prints and writes."""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ingest.command import CommandRefused, Parser, as_utf8, name
from ingest.output import say, warn

if TYPE_CHECKING:
    from rag.evaluation.cases import Case
    from rag.evaluation.figures import Run
    from rag.evaluation.sweep import Variant
    from rag.settings import Settings

FILE = (
    "questions, one JSON object a line: `question`, and as far as known `file`, `page`, `quote` (where the answer"
    " stands), `pattern` or `answer` (what it says), `answerable`, `history`, `language`, `id`"
)
SWEEP = (
    "ask everything once for each value, e.g. k=3,5,8 or grounding.mode=balanced,strict; any setting of [retrieval],"
    " [reranker], [answer] and [grounding], and store.knowledge_base; repeated, every combination"
)
EXIT_STATUSES = """exit status:
  0    every question was asked
  1    a question failed, or a figure is below --at-least
  2    nothing was asked: a bad line, argument or setting, no knowledge base, an engine that does not start or that died
  130  interrupted; nothing is written"""


def add_arguments(parser: Parser) -> None:
    """The arguments of an evaluation."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, EXIT_STATUSES
    parser.set_run(run, interrupted="nothing is written")
    parser.set_defaults(json=False)  # errors are sentences here: --json names a file
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help=FILE)
    add("--knowledge-base", metavar="NAME", type=name, help="name of the knowledge base (default: the settings')")
    add("--retrieval-only", action="store_true", help="ask the search alone, without an engine")
    add("--sweep", metavar="NAME=V,V", type=as_utf8, action="append", default=[], help=SWEEP)
    add("--compare", metavar="OLD.json", type=Path, help="what has changed since a run that --json has written")
    add("--json", metavar="FILE", type=Path, dest="json_file", help="write figures and every question to this file")
    add("--chart", metavar="FILE.png", type=Path, help="draw the runs side by side (pip install 'groundwell[eval]')")
    add(
        "--at-least",
        metavar="NAME=SHARE",
        action="append",
        default=[],
        help="end with 1 where a figure is lower, e.g. recall@5=0.97; repeatable",
    )
    add("--concurrency", metavar="N", type=_positive, default=8, help="questions at a time (default: 8)")
    add("--failures", metavar="N", type=_natural, default=10, help="questions that went wrong to list (default: 10)")


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return int(text)


def _positive(text: str) -> int:
    if not _natural(text):
        raise argparse.ArgumentTypeError("at least one at a time")
    return int(text)


def run(given: argparse.Namespace, settings: "Settings") -> int:
    """Ask, print and write; returns one of EXIT_STATUSES."""
    from rag.evaluation.cases import read_cases
    from rag.evaluation.comparison import read_runs
    from rag.evaluation.sweep import variants

    if given.knowledge_base:
        store = settings.store.model_copy(update={"knowledge_base": given.knowledge_base})
        settings = settings.model_copy(update={"store": store})
    _check_writable(given)
    cases = read_cases(given.file)
    wanted = variants(settings, given.sweep, retrieval_only=given.retrieval_only)
    old = _counterparts(wanted, read_runs(given.compare), cases) if given.compare else []
    bars = _bars(given.at_least, wanted)
    runs = _evaluated(given, cases, wanted)
    title = _title(given, cases)
    _print(given, title, runs, old)
    _write(given, title, runs, old)
    return max(_failed(runs), _below(runs, bars))


def _evaluated(given: argparse.Namespace, cases: Sequence["Case"], wanted: Sequence["Variant"]) -> list["Run"]:
    from tqdm import tqdm

    from rag.evaluation.running import Asking, evaluate

    # With `disable=None` tqdm shows nothing where stderr is no terminal.
    with tqdm(total=len(cases) * len(wanted), unit=" questions", disable=None, file=sys.stderr) as bar:
        asking = Asking(cases, wanted, given.concurrency, bar.update)
        return evaluate(asking, retrieval_only=given.retrieval_only, warn=_warn)


def _warn(line: str) -> None:
    warn(f"groundwell eval: {line}")


def _check_writable(given: argparse.Namespace) -> None:
    """Raise CommandRefused for a file that could not be written when all is done."""
    from rag.evaluation import chart

    for file in filter(None, (given.json_file, given.chart)):
        if not file.parent.is_dir() or file.is_dir():
            raise CommandRefused(f"{file} cannot be written: {'it is a folder' if file.is_dir() else 'no such folder'}")
    if given.chart:
        chart.check(given.chart)


def _counterparts(wanted: Sequence["Variant"], old: Sequence["Run"], cases: Sequence["Case"]) -> list["Run"]:
    """The old runs that the new ones will be compared with. Raises CommandRefused where one could not be."""
    from rag.evaluation.comparison import BadRun, counterpart

    asked = {case.key for case in cases}
    found = {run.name: run for run in (counterpart(variant.name, old) for variant in wanted)}
    if any(asked.isdisjoint(record.key for record in run.records) for run in found.values()):
        raise BadRun("the runs have no question in common: their ids (or, without ids, their words) differ")
    return [*found.values()]


def _bars(at_least: Sequence[str], wanted: Sequence["Variant"]) -> dict[str, float]:
    """The figures that must be reached. Raises CommandRefused."""
    from rag.evaluation.figures import is_figure
    from rag.evaluation.ranking import cutoffs

    bars = {}
    for text in at_least:
        figure, _, share = text.partition("=")
        if not (is_figure(figure) and re.fullmatch(r"\d*\.?\d+", share) and float(share) <= 1):
            raise CommandRefused(f"--at-least {text} is not FIGURE=SHARE, as recall@5=0.97: --json names all figures")
        cutoff = int(figure.partition("@")[2] or 0)
        for variant in wanted if cutoff else []:
            if cutoff not in (told := cutoffs(variant.settings.answer.retrieve)):
                raise CommandRefused(
                    f"--at-least {text}: {variant.name} tells recall at {', '.join(map(str, told))} only"
                )
        bars[figure] = float(share)
    return bars


def _below(runs: Sequence["Run"], bars: dict[str, float]) -> int:
    from rag.evaluation.figures import figures

    status = 0
    for run in runs:
        found = figures(run.records)
        for figure, share in bars.items():
            value = found[figure].value if figure in found else None
            if value is None or value < share:
                shown = "nothing to count" if value is None else f"{value:.4f}"
                _warn(f"{run.name}: {figure} is {shown}, and should be at least {share:g}")
                status = 1
    return status


def _failed(runs: Sequence["Run"]) -> int:
    return int(any(record.error for run in runs for record in run.records))


def _print(given: argparse.Namespace, title: str, runs: Sequence["Run"], old: Sequence["Run"]) -> None:
    from rag.evaluation.failures import failures
    from rag.evaluation.table import compared, tables

    say(title, "", *tables([*old, *runs]))
    for other, run in _pairs(runs, old):
        say("", *compared(other, run))
    if given.failures:
        say("", *failures(runs, given.failures))


def _pairs(runs: Sequence["Run"], old: Sequence["Run"]) -> list[tuple["Run", "Run"]]:
    """What is compared: each with its old one, or the further variants of a sweep with the first."""
    from rag.evaluation.comparison import counterpart

    if old:
        return [(counterpart(run.name, old), run) for run in runs]
    return [(runs[0], run) for run in runs[1:]]


def _title(given: argparse.Namespace, cases: Sequence["Case"]) -> str:
    what = "retrieval only" if given.retrieval_only else "whole turns"
    return f"{given.file}: {len(cases)} questions, {what}, {given.concurrency} at a time"


def _write(given: argparse.Namespace, title: str, runs: Sequence["Run"], old: Sequence["Run"]) -> None:
    from rag.evaluation import chart
    from rag.evaluation.comparison import FORMAT
    from rag.evaluation.figures import as_json

    if given.json_file:
        whole = {"format": FORMAT, "title": title, "runs": [as_json(run) for run in runs]}
        given.json_file.write_text(json.dumps(whole, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    if given.chart:
        for line in chart.draw([*old, *runs], title, given.chart):
            _warn(line)
