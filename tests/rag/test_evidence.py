"""Whether a passage says what a sentence says: numbers, units, names, negation, directions, who does what."""

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document

from ingest.load import load
from rag.amounts import Amount, amounts, identifiers
from rag.citations import cite
from rag.evidence import Evidences

DATA = Path(__file__).parents[2] / "data"
CLAIMS = [json.loads(line) for line in (DATA / "claims.jsonl").read_text(encoding="utf-8").splitlines()]
QUESTIONS = [json.loads(line) for line in (DATA / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
QUOTED = [case for case in QUESTIONS if case["answerable"] and not case["file"].endswith(".csv")]


@pytest.mark.parametrize("case", CLAIMS, ids=[f"{case['id']}-{case['kind']}" for case in CLAIMS])
def test_a_sentence_is_verified_where_its_passage_says_so_and_only_there(case: dict[str, Any]) -> None:
    found = Evidences({1: Document(case["passage"])}).best(case["sentence"], [1])
    assert (found is not None) == case["supported"]


def test_on_the_sample_every_quote_is_verified_and_cut_out_of_the_documents_text() -> None:
    for case in QUOTED:
        document = load(DATA / "sample" / case["file"], case["file"]).text
        passage = Document(document[10:], metadata={"source": case["file"], "start": 10})
        citing = cite(case["quote"], {1: passage})
        assert citing.citations, case["id"]
        for citation in citing.citations:
            assert document[citation.start : citation.end] == citation.quote
            assert citation.file == case["file"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3,000 euros", [(3000.0, "EUR")]),
        ("EUR 2.40 per probe", [(2.4, "EUR")]),
        ("36 hours, thirty-six days", [(36.0, "hour"), (36.0, "day")]),
        ("the 4th, the fourth", [(4.0, None), (4.0, None)]),
        ("8:15", [(8.0, None), (15.0, None)]),
        ("三千元", [(3000.0, "CNY")]),
        ("二十八天，六个月", [(28.0, "day"), (6.0, "month")]),
        ("6万元", [(60000.0, "CNY")]),
        ("firmware 3.4.0", [("3.4.0", None)]),
        ("一个人，十分满意", []),
        ("error E140, part HP-1024", []),
        ("one of them", []),
    ],
)
def test_numbers_are_read_with_their_units(text: str, expected: list[tuple[float, str | None]]) -> None:
    assert amounts(text) == [Amount(value, unit) for value, unit in expected]


def test_codes_are_no_numbers() -> None:
    assert identifiers("E140 and HP-1024, not 12th or 3mm") == {"e140", "hp-1024"}


def test_a_sentence_that_the_page_has_cut_into_lines_is_one_and_a_heading_is_none() -> None:
    text = "Insurance\nThe policy number\nof the travel insurance is NF-220981.\ncode: E140\nTilt of the probe"
    (citation,) = cite("The policy number of the travel insurance is NF-220981.", {1: Document(text)}).citations
    assert citation.quote == "The policy number\nof the travel insurance is NF-220981."
