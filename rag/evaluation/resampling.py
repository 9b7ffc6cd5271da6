"""What else could have come out: questions drawn again with putting back (bootstrap), two runs' counts swapped."""

from collections.abc import Sequence
from typing import Any

SAMPLES, BATCH = 10_000, 500
ENDS = (2.5, 97.5)
"""Percentiles: a 95 % interval by Efron and Tibshirani 1993, chapter 13."""


def drawn_again(counts: Any) -> Any:
    """Sums of the rows of as many questions, drawn again: SAMPLES rows. The same for the same counts."""
    import numpy

    random = numpy.random.default_rng(0)
    shares = numpy.full(len(counts), 1 / len(counts))
    drawn = (random.multinomial(len(counts), shares, size=BATCH) for _ in range(SAMPLES // BATCH))
    return numpy.concatenate([times @ counts for times in drawn])


def swapped(counts: Any) -> Any:
    """Sums of the rows where the two runs' counts, columns 0–1 and 2–3, are swapped by a coin: SAMPLES rows."""
    import numpy

    random = numpy.random.default_rng(0)
    differ = (counts[:, :2] != counts[:, 2:]).any(axis=1)
    same, one = counts[~differ].sum(axis=0), counts[differ]
    other = one[:, [2, 3, 0, 1]]
    coins = (random.random((BATCH, len(one))) < 0.5 for _ in range(SAMPLES // BATCH))
    return numpy.concatenate([same + flips @ other + ~flips @ one for flips in coins])


def interval(counts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The 95 % interval of a figure; where nothing is counted in any question, of what is there."""
    import numpy

    sums = drawn_again(numpy.array(counts, dtype=float))
    with numpy.errstate(invalid="ignore"):
        low, high = numpy.nanpercentile(sums[:, 0] / sums[:, 1], ENDS)
    return float(low), float(high)
