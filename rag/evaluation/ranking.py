"""R@k, MRR and nDCG of ranked passages, by ir_measures (trec_eval)."""

from collections.abc import Sequence
from typing import Any

CUTOFFS = (1, 3, 5, 10, 20, 50)
RIGHT = "right"
Hits = Sequence[Sequence[bool] | None]


def cutoffs(k: int) -> list[int]:
    """The numbers of passages for which recall is told when `k` were asked for."""
    return sorted({k, *(cutoff for cutoff in CUTOFFS if cutoff < k)})


def ranked(hits: Hits, k: int) -> list[dict[str, tuple[float, float]]]:
    """For each question, from which of its passages were right, best first: its count for each figure.

    One thing is right, a file or a place in it: the first passage of it is what was found, further ones add nothing.
    None stands for a question of which nothing is expected.
    """
    from ir_measures import RR, R, iter_calc, nDCG

    names: dict[Any, str] = {R @ cutoff: f"recall@{cutoff}" for cutoff in cutoffs(k)}
    names |= {RR @ k: "mrr", nDCG @ k: "ndcg"}
    asked = {str(number): some for number, some in enumerate(hits) if some is not None}
    counts: list[dict[str, tuple[float, float]]] = [{} for _ in hits]
    if not asked:
        return counts
    qrels = {number: {RIGHT: 1} for number in asked}
    run = {number: _scores(some) for number, some in asked.items()}
    for one in iter_calc([*names], qrels, run):
        counts[int(one.query_id)][names[one.measure]] = (float(one.value), 1.0)
    return [{name: found[name] for name in names.values() if name in found} for found in counts]


def _scores(hits: Sequence[bool]) -> dict[str, float]:
    """Falling scores: trec_eval orders by them, and takes ties in the order of names."""
    first = hits.index(True) if True in hits else None
    return {RIGHT if at == first else f"other {at}": float(-at) for at in range(len(hits))}
