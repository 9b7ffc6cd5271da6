"""How well sentences are told from what their passage says: `python -m benchmarks.verification`.

On the pairs of `data/claims.jsonl`, on which the rules were written, and on the quotes of `data/questions.jsonl`, in
which a number has been changed; rapidfuzz is compared where it is installed.
"""

import json
import re
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from langchain_core.documents import Document

from ingest.load import load
from rag import evidence
from rag.evidence import Evidences

DATA = Path(__file__).parents[1] / "data"
Pair = tuple[str, str, bool]
"""A passage, a sentence, and whether the passage says so."""


def lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def claims() -> list[Pair]:
    return [(case["passage"], case["sentence"], case["supported"]) for case in lines("claims.jsonl")]


def mutations() -> list[Pair]:
    """The quote of each question as it is, and with its last number changed, against its whole document."""
    pairs = []
    for case in lines("questions.jsonl"):
        if case["answerable"] and not case["file"].endswith(".csv"):
            text = load(DATA / "sample" / case["file"], case["file"]).text
            pairs.append((text, case["quote"], True))
            if numbers := list(re.finditer(r"(?<![\w.,])\d+(?![\w.,:]*\d)", case["quote"])):
                start, end = numbers[-1].span()
                wrong = f"{case['quote'][:start]}{int(case['quote'][start:end]) + 3}{case['quote'][end:]}"
                pairs.append((text, wrong, False))
    return pairs


def verified(passage: str, sentence: str) -> bool:
    return Evidences({1: Document(passage)}).best(sentence) is not None


def row(name: str, pairs: list[Pair], says: Callable[[str, str], bool]) -> str:
    told = [(says(passage, sentence), supported) for passage, sentence, supported in pairs]
    right = sum(one and two for one, two in told)
    precision = right / max(1, sum(one for one, _ in told))
    recall = right / sum(two for _, two in told)
    return f"| {name} | {len(pairs)} | {precision:.3f} | {recall:.3f} |"


def _reaches(ratio: Callable[[str, str], float], threshold: float, passage: str, sentence: str) -> bool:
    return ratio(sentence, passage) >= threshold


def main() -> None:
    print("| by | pairs | precision | recall |\n|---|---|---|---|")
    print(row("ours, on quotes with a number changed", mutations(), verified))
    chosen = evidence.SUPPORT
    for threshold in (0.4, 0.5, 0.6, 0.7, 0.8):
        evidence.SUPPORT = threshold
        shown = f"**{threshold}**" if threshold == chosen else f"{threshold}"
        print(row(f"ours at {shown}", claims(), verified))
    evidence.SUPPORT = chosen
    if find_spec("rapidfuzz"):
        from rapidfuzz import fuzz

        for threshold in (80, 90, 95):
            for ratio in (fuzz.partial_ratio, fuzz.token_set_ratio):
                says = partial(_reaches, ratio, threshold)
                print(row(f"rapidfuzz {ratio.__name__} {threshold}", claims(), says))


if __name__ == "__main__":
    main()
