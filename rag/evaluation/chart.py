"""The figures of some runs as a picture, by matplotlib, which is imported only here."""

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingest.command import CommandRefused
from ingest.output import printable
from rag.evaluation.figures import STAGES, Run, figures, in_order, label, latencies
from rag.evaluation.resampling import interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000"]
"""Okabe and Ito 2008: told apart by colour-blind eyes too."""
LEFT_OUT = re.compile(r".*ndcg|grounding_score|errors")
OWN_FONT = "DejaVu Sans"
"""It comes with matplotlib, and has no Chinese, Japanese or Korean characters."""
LONGEST = 70
"""Characters of a run's name."""
NOT_FONTS = re.compile("Last ?Resort|Blank", re.IGNORECASE)
"""They have every character, as a box or as nothing."""
BAR_INCHES, GAP = 0.17, 0.35


class NoChart(CommandRefused):
    """There is no way to draw one."""


def check(file: Path) -> None:
    """Raise NoChart before anything is asked where a chart could not be drawn at the end."""
    if file.suffix.lower() != ".png":
        raise NoChart(f"the chart is a PNG file: {file} does not end in .png")
    if importlib.util.find_spec("matplotlib") is None:
        raise NoChart("a chart needs matplotlib: `pip install 'groundwell[eval]'`, or leave --chart out")


def draw(runs: Sequence[Run], title: str, file: Path) -> list[str]:
    """Write the chart; returns a line for each run that goes by a number in it as no font can draw its name."""
    import matplotlib
    from matplotlib.figure import Figure

    fonts = _fonts("".join([title, *(run.name for run in runs)]))
    names = [_name(run.name, number, fonts) for number, run in enumerate(runs, start=1)]
    rows = in_order(name for run in runs for name in figures(run.records) if not LEFT_OUT.fullmatch(name))
    inches = 1.6 + 0.2 * len(runs) + (len(rows) + 1) * (BAR_INCHES * len(runs) + GAP / 2)
    with matplotlib.rc_context({"font.family": [OWN_FONT, *fonts], "text.parse_math": False, "font.size": 9}):
        picture = Figure(figsize=(12, inches), layout="constrained")
        shares, seconds = picture.subplots(1, 2, width_ratios=[2.2, 1])
        bars = _shares(shares, runs, rows)
        _seconds(seconds, runs, len(rows))
        picture.legend(bars, names, loc="outside lower center", ncols=min(len(runs), 3), frameon=False)
        picture.suptitle(_drawable(title, fonts) or "groundwell eval")
        picture.savefig(file, dpi=120)
    told = zip(names, runs, strict=True)
    return [
        f"no font here draws “{run.name}”: the chart calls it {name}" for name, run in told if name != _cut(run.name)
    ]


def _shares(axes: "Axes", runs: Sequence[Run], rows: Sequence[str]) -> list[Any]:
    """Bars from 0 to 1 with their 95 % intervals; returns one bar of each run, for the legend."""
    bars = []
    for number, run in enumerate(runs):
        there = figures(run.records)
        shown = [name for name in rows if name in there]
        values = [there[name].value for name in shown]
        ends = [interval([one.counts[name] for one in run.records if name in one.counts]) for name in shown]
        beyond = [
            [max(0.0, value - low) for value, (low, _) in zip(values, ends, strict=True)],
            [max(0.0, high - value) for value, (_, high) in zip(values, ends, strict=True)],
        ]
        places = [_place(rows.index(name), number, len(runs)) for name in shown]
        bars.append(_bars(axes, places, values, beyond, number, [f"{value:.3f}" for value in values], len(runs)))
    _label(axes, [": ".join(label(name)) for name in rows], "share, with 95 % interval")
    axes.set_xlim(0, 1.13)
    axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    return bars


def _seconds(axes: "Axes", runs: Sequence[Run], least: int) -> None:
    """Bars as long as half of the turns took, with a line up to what 19 in 20 took; room for `least` rows of them."""
    stages = [stage for stage in STAGES if any(stage in latencies(run.records) for run in runs)]
    longest = 0.0
    for number, run in enumerate(runs):
        there = latencies(run.records)
        shown = [stage for stage in stages if stage in there]
        values = [there[stage].p50 for stage in shown]
        beyond = [[0.0] * len(shown), [max(0.0, there[stage].p95 - there[stage].p50) for stage in shown]]
        longest = max([longest, *(there[stage].p95 for stage in shown)])
        places = [_place(stages.index(stage), number, len(runs)) for stage in shown]
        _bars(axes, places, values, beyond, number, [f"{value:.3g} s" for value in values], len(runs))
    _label(axes, [STAGES[stage] for stage in stages], "seconds: p50, line to p95")
    axes.set_ylim(max(least, len(stages)) - 0.5, -0.5)
    axes.set_xlim(0, (longest or 1) * 1.25)


def _place(row: int, run: int, runs: int) -> float:
    """Where a bar lies: rows downwards, one unit each, and in a row the runs."""
    return row + (1 - GAP) * ((run + 0.5) / runs - 0.5)


def _bars(
    axes: "Axes", places: list[float], values: list[float], beyond: Any, run: int, texts: list[str], runs: int
) -> Any:
    height = (1 - GAP) / runs
    whisker = {"elinewidth": 0.8, "ecolor": "#444444"}
    bars = axes.barh(places, values, height, xerr=beyond, color=COLOURS[run % len(COLOURS)], error_kw=whisker)
    axes.bar_label(bars, texts, padding=3, fontsize=7)
    return bars


def _label(axes: "Axes", rows: Sequence[str], below: str) -> None:
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(below)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def _name(name: str, number: int, fonts: Sequence[str]) -> str:
    return _drawable(_cut(name), fonts) or f"run {number}"


def _cut(name: str) -> str:
    line = printable(name)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _fonts(text: str) -> list[str]:
    """Fonts of this machine that together have what matplotlib's own lacks of the text; an upright sans-serif first."""
    from matplotlib import font_manager

    missing, chosen = _characters(text) - _glyphs(font_manager.findfont(OWN_FONT)), list[str]()
    upright = [font for font in font_manager.fontManager.ttflist if font.style == "normal" and missing]
    there = {font.name: font for font in upright if not NOT_FONTS.search(font.name)}
    for font in sorted(there.values(), key=lambda one: ("Sans" not in one.name, "Mono" in one.name, one.name)):
        if missing & (has := _glyphs(font.fname)):
            chosen.append(font.name)
            missing -= has
        if not missing:
            break
    return chosen


def _drawable(text: str, fonts: Sequence[str]) -> str:
    """The text where these fonts have all of its characters, else nothing."""
    from matplotlib import font_manager

    has = set().union(*(_glyphs(font_manager.findfont(name)) for name in (OWN_FONT, *fonts)))
    return text if _characters(text) <= has else ""


def _characters(text: str) -> set[int]:
    return {ord(one) for one in printable(text) if not one.isspace()}


def _glyphs(file: str) -> set[int]:
    """The characters that a font file has."""
    from matplotlib.ft2font import FT2Font

    try:
        return set(FT2Font(file).get_charmap())
    except (OSError, RuntimeError):  # broken, or gone since the list was made
        return set()
