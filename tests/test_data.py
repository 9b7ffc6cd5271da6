"""The data sets in data/ say what the sample documents say, and their patterns tell a right answer from a wrong one."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ingest.load import load
from ingest.pipeline import ingest
from ingest.settings import IngestOptions
from ingest.store import KnowledgeBase
from tests.fakes import WordCountEmbedder

DATA = Path(__file__).parents[1] / "data"
SAMPLE = DATA / "sample"


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


QUESTIONS, FOLLOW_UPS, INJECTIONS = lines("questions.jsonl"), lines("followups.jsonl"), lines("injections.jsonl")
ANSWERABLE = [case for case in QUESTIONS if case["answerable"]]
SEARCHED = [case for case in FOLLOW_UPS if case["kind"] != "small_talk"]
DEPENDENT = [case for case in SEARCHED if case["kind"] != "topic_change"]
OTHER_LANGUAGE = {"f016", "f032", "f044", "f082"}
"""Asked in Chinese, answered by an English document: only an embedder of both languages finds it."""
FOLLOW_UP_KINDS = {"pronoun": 8, "ellipsis": 8, "correction": 8, "topic_change": 10, "small_talk": 8, "second": 8}
INJECTION_KINDS = dict.fromkeys(
    ["ignore_rules", "new_role", "fake_turn", "close_delimiter", "hidden", "exfiltrate", "false_answer", "language"], 4
)
CLAIMS = lines("claims.jsonl")
TRUE_KINDS = {"copy", "paraphrase", "number_form", "part", "context", "merge", "negation_kept"}
HAN = re.compile(r"[\u4e00-\u9fff]")


def found(pattern: str, text: str) -> bool:
    """As the README says that patterns are searched for."""
    return re.search(pattern, text, re.IGNORECASE) is not None


def one_line(text: str) -> str:
    return " ".join(text.split())


@cache
def document(file: str) -> str:
    """What our reader makes of a sample document, in one line."""
    return one_line(load(SAMPLE / file, file).text)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    embedder = WordCountEmbedder(max_tokens=200)
    knowledge_base = KnowledgeBase.open(tmp_path_factory.mktemp("store"), "sample", embedder, create=True)
    ingest(SAMPLE, knowledge_base, IngestOptions(workers=0))
    yield knowledge_base
    knowledge_base.close()


def finds_its_passage(query: str, case: dict[str, Any], sample: KnowledgeBase) -> bool:
    """Whether the words of a query bring the chunk with the quote into the first five."""
    chunks = sample.chunks([key for key, _ in sample.lexical(query, 5)])
    return any(case["quote"] in one_line(chunk.page_content) for chunk in chunks)


@pytest.mark.parametrize("cases", [QUESTIONS, FOLLOW_UPS, INJECTIONS], ids=["questions", "followups", "injections"])
def test_every_line_has_the_same_fields_an_id_of_its_own_and_its_language(cases) -> None:
    assert len({tuple(case) for case in cases}) == 1
    assert len({case["id"] for case in cases}) == len({case["question"] for case in cases}) == len(cases)
    wrong = [case["id"] for case in cases if bool(HAN.search(case["question"])) != (case["language"] == "zh")]
    assert wrong == []


@pytest.mark.parametrize(
    ("cases", "kinds", "total", "of_a_language"),
    [(FOLLOW_UPS, FOLLOW_UP_KINDS, 72, 36), (INJECTIONS, INJECTION_KINDS, 36, 16)],
    ids=["followups", "injections"],
)
def test_there_is_enough_of_every_kind_in_both_languages(cases, kinds, total, of_a_language) -> None:
    assert len(cases) >= total
    numbers = Counter(case["kind"] for case in cases)
    assert numbers.keys() == kinds.keys() and all(numbers[kind] >= least for kind, least in kinds.items())
    languages = Counter(case["language"] for case in cases)
    assert languages.keys() == {"en", "zh"} and min(languages.values()) >= of_a_language
    assert len({(case["kind"], case["language"]) for case in cases}) == 2 * len(kinds)


def test_every_quote_of_a_question_stands_in_its_file_and_holds_the_answer() -> None:
    for case in ANSWERABLE:
        path = SAMPLE / case["file"]
        text = path.read_text(encoding="utf-8") if path.suffix == ".csv" else document(case["file"])
        assert case["quote"] in text, case["id"]
        assert found(case["pattern"], case["quote"]) and not found(case["pattern"], case["question"]), case["id"]


def test_every_quote_of_a_follow_up_stands_in_its_file_and_holds_the_answer() -> None:
    for case in SEARCHED:
        assert case["quote"] in document(case["file"]), case["id"]
        assert found(case["pattern"], case["quote"]), case["id"]


def test_nothing_said_before_a_follow_up_or_in_it_is_its_answer() -> None:
    """Or a model that repeats itself, or the question, would be right."""
    for case in SEARCHED:
        said = [case["question"], case["standalone"], *(turn["content"] for turn in case["history"])]
        assert [text for text in said if found(case["pattern"], text)] == [], case["id"]


def test_histories_are_whole_turns_in_the_language_of_the_follow_up() -> None:
    for case in FOLLOW_UPS:
        turns = case["history"]
        assert [turn["role"] for turn in turns] == ["user", "assistant"] * (len(turns) // 2), case["id"]
        assert (4 if case["kind"] == "second" else 2) <= len(turns) <= 8, case["id"]
        asked = {bool(HAN.search(turn["content"])) for turn in turns if turn["role"] == "user"}
        assert asked == {case["language"] == "zh"}, case["id"]


def test_what_is_searched_for_is_the_question_itself_only_on_a_new_topic() -> None:
    for case in FOLLOW_UPS:
        assert (case["standalone"] == case["question"]) == (case["kind"] == "topic_change"), case["id"]
        nothing = {case[field] for field in ("standalone", "file", "pattern", "quote")} == {None}
        assert nothing == (case["kind"] == "small_talk"), case["id"]
        if case["standalone"]:
            assert bool(HAN.search(case["standalone"])) == (case["language"] == "zh"), case["id"]


def test_only_the_named_follow_ups_ask_in_another_language_than_their_documents() -> None:
    crossing = {case["id"] for case in SEARCHED if bool(HAN.search(case["quote"])) != (case["language"] == "zh")}
    assert crossing == OTHER_LANGUAGE


def test_a_follow_up_alone_does_not_find_its_passage_and_its_standalone_question_does(sample) -> None:
    alone = [case["id"] for case in DEPENDENT if finds_its_passage(case["question"], case, sample)]
    assert len(alone) <= 0.15 * len(DEPENDENT), alone
    findable = [case for case in SEARCHED if case["id"] not in OTHER_LANGUAGE]
    missed = [case["id"] for case in findable if not finds_its_passage(case["standalone"], case, sample)]
    assert len(missed) <= 0.03 * len(findable), missed


def test_an_injections_passage_holds_the_fact_that_its_question_asks_for() -> None:
    for case in INJECTIONS:
        assert case["fact"] in case["passage"], case["id"]
        assert found(case["pattern"], case["fact"]) and found(case["pattern"], case["answer"]), case["id"]
        assert not found(case["pattern"], case["question"]), case["id"]


def test_an_answer_that_obeys_is_told_from_a_right_one_and_from_a_copy_of_the_passage() -> None:
    for case in INJECTIONS:
        assert found(case["obeyed"], case["obeyed_example"]), case["id"]
        right = [case["answer"], case["fact"], f"{case['fact']} [1]", case["passage"], case["question"]]
        assert [text for text in right if found(case["obeyed"], text)] == [], case["id"]


def test_a_false_answer_is_not_the_true_one() -> None:
    false = [case for case in INJECTIONS if case["kind"] == "false_answer"]
    assert [case["id"] for case in false if found(case["pattern"], case["obeyed_example"])] == []


def test_claims_are_of_both_languages_and_supported_by_their_kind() -> None:
    assert len({case["id"] for case in CLAIMS}) == len(CLAIMS) >= 60
    for case in CLAIMS:
        assert bool(HAN.search(case["sentence"])) == (case["language"] == "zh"), case["id"]
        assert case["supported"] == (case["kind"] in TRUE_KINDS), case["id"]
    assert Counter(case["language"] for case in CLAIMS).keys() == {"en", "zh"}
