"""Figures against values counted by hand, and against the libraries that know them."""

import math
import random

import numpy
import pytest
from scipy import stats

from rag.evaluation.comparison import differences
from rag.evaluation.figures import Run, figures, in_order, label, latencies
from rag.evaluation.judging import DECLINES, Record
from rag.evaluation.matching import holds, overlaps, says
from rag.evaluation.ranking import cutoffs, ranked
from rag.evaluation.resampling import interval
from rag.grounding import REFUSALS


def record(key: object, timings: dict[str, float] | None = None, **counts: tuple[float, float]) -> Record:
    return Record(str(key), f"{key}?", "en", False, True, counts, timings or {}, {})


def run_of(*records: Record, name: str = "one") -> Run:
    return Run(name, 5, {}, list(records))


def mean(values: list[dict[str, tuple[float, float]]], name: str) -> float:
    return sum(value[name][0] for value in values) / len(values)


def test_retrieval_is_counted_as_by_hand() -> None:
    # Right at the first, third and seventh place, twice, and never; one search found nothing at all.
    hits = [
        [True, False],
        [False, False, True],
        [False] * 6 + [True, False],
        [False, True, True, False],
        [False] * 8,
        [],
    ]
    found = ranked(hits, 8)
    assert mean(found, "recall@1") == pytest.approx(1 / 6)
    assert mean(found, "recall@3") == pytest.approx(3 / 6)
    assert mean(found, "recall@5") == pytest.approx(3 / 6)
    assert mean(found, "recall@8") == pytest.approx(4 / 6)
    assert mean(found, "mrr") == pytest.approx((1 + 1 / 3 + 1 / 7 + 1 / 2) / 6)
    gains = 1 + 1 / math.log2(4) + 1 / math.log2(8) + 1 / math.log2(3)
    assert mean(found, "ndcg") == pytest.approx(gains / 6)


def test_ndcg_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import ndcg_score

    for place in range(8):
        hits = [at == place for at in range(8)]
        expected = ndcg_score([[float(hit) for hit in hits]], [[float(-at) for at in range(8)]], k=8)
        assert ranked([hits], 8)[0]["ndcg"][0] == pytest.approx(expected)


def test_a_question_of_which_nothing_is_expected_counts_for_nothing() -> None:
    assert ranked([None, [True]], 1) == [{}, {"recall@1": (1, 1), "mrr": (1, 1), "ndcg": (1, 1)}]
    assert ranked([None], 3) == [{}]


def test_recall_is_told_for_usual_numbers_and_for_all_that_was_asked_for() -> None:
    assert [cutoffs(k) for k in (1, 3, 4, 8, 100)] == [[1], [1, 3], [1, 3, 4], [1, 3, 5, 8], [1, 3, 5, 10, 20, 50, 100]]


def test_a_figure_is_the_sum_of_what_is_right_over_the_sum_of_all() -> None:
    found = figures([record(1, citation_precision=(1, 1)), record(2, citation_precision=(1, 3)), record(3)])
    assert (found["citation_precision"].value, found["citation_precision"].of) == (0.5, 4)
    assert figures([record(1, citation_precision=(0, 0))]) == {}


def test_figures_come_in_the_order_of_the_table_and_all_have_a_label() -> None:
    names = ["errors", "place_mrr", "recall@10", "recall@3", "answered", "mrr"]
    assert in_order(names) == ["recall@3", "recall@10", "mrr", "place_mrr", "answered", "errors"]
    assert label("recall@10") == ("retrieval", "right file among the first 10")


def test_latency_is_told_by_percentiles_of_the_turns_that_went_through_a_stage() -> None:
    records = [record(n, {"total": float(n), "condense": 0.0}) for n in range(101)] + [
        record("late", {"retrieve": 3.0})
    ]
    found = latencies(records)
    assert (found["total"].p50, found["total"].p95, found["total"].turns) == (50, 95, 101)
    assert found["retrieve"].p95 == 3
    assert "condense" not in found  # none is a follow-up


@pytest.mark.parametrize(
    ("answer", "pattern", "expected", "right"),
    [
        ("It is TWENTY-five days.", "twenty-FIVE", None, True),
        ("It is 125 days.", r"\b25\b", None, False),
        ("The limit is\n3,000 Euros.", None, "3000 euros", True),
        ("It costs 13,000 euros.", None, "3,000 euros", False),
        ("每年有十二天年假。", None, "十二天", True),
        ("每年有二十天年假。", None, "十二天", False),
        ("费用为２８元", None, "28元", True),
        ("Dr. Adeyemi approves it", None, "dr adeyemi", True),
        ("anything", None, None, None),
    ],
)
def test_an_answer_is_right_by_its_pattern_or_else_by_its_words(answer, pattern, expected, right) -> None:
    assert says(answer, pattern=pattern, expected=expected) is right


def test_a_passage_holds_a_quote_that_its_reader_set_otherwise() -> None:
    assert holds("Code: E305\nMeaning: Probe not found\nRemedy: Reconnect it", "E305,Probe not found,Reconnect it")
    assert holds("一、年假\n员工每年有十二天\n年假。", "员工每年有十二天年假。")
    assert not holds("员工每年有七天病假，须交医院证明。", "员工每年有十二天年假。")
    assert not holds("Part-time employees get 10 days of sick leave.", "Full-time employees get 25 days of leave.")


def test_quotes_of_one_place_overlap_though_cut_otherwise() -> None:
    whole = "Travel is approved by the line manager, Dr Adeyemi, before it is booked."
    assert overlaps("approved by the line manager, Dr Adeyemi", whole)
    assert not overlaps("The canteen opens at noon.", whole)
    assert overlaps("十二天年假", "员工每年有十二天年假。") and not overlaps("病假为七天", "员工每年有十二天年假。")


@pytest.mark.parametrize(
    ("answer", "declines"),
    [
        *((text, True) for language, text in REFUSALS.items() if language in ("en", "zh")),
        ("The text does not mention dogs.", True),
        ("I don't know.", True),
        ("This is not mentioned in the passages.", True),
        ("There is no information about that.", True),
        ("文本中没有提到宠物。", True),
        ("很抱歉，无法回答这个问题。", True),
        ("No, Halden Instruments does not pay for a gym membership.", False),
        ("The probe is not sold in Chile.", False),
        ("外包人员没有带薪的休假。", False),
    ],
)
def test_a_models_own_refusal_is_told_from_an_answer_in_the_negative(answer: str, declines: bool) -> None:
    assert bool(DECLINES.search(answer)) is declines


def test_a_difference_has_the_interval_and_the_p_of_scipy() -> None:
    toss = random.Random(3)
    old = [float(toss.random() < 0.5) for _ in range(60)]
    new = [float(toss.random() < 0.8) for _ in range(60)]
    pair = [run_of(*(record(n, mrr=(value, 1)) for n, value in enumerate(values))) for values in (old, new)]
    (found,) = differences(*pair)
    gained = numpy.array(new) - numpy.array(old)
    assert found.new - found.old == pytest.approx(gained.mean())
    ends = stats.bootstrap((gained,), numpy.mean, method="percentile", rng=1).confidence_interval
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high), abs=0.02)
    expected = stats.permutation_test(
        (numpy.array(new), numpy.array(old)),
        lambda one, two, axis: (one - two).mean(axis=axis),
        permutation_type="samples",
        vectorized=True,
        rng=1,
    )
    assert found.p == pytest.approx(expected.pvalue, abs=0.01)
    assert differences(*pair) == [found]  # the same every time


def test_a_share_of_citations_is_compared_by_question() -> None:
    old = run_of(record(1, citation_precision=(1, 4)), record(2, citation_precision=(0, 0)))
    new = run_of(record(2, citation_precision=(1, 1)), record(1, citation_precision=(2, 4)), record(3))
    (found,) = differences(old, new)
    assert (found.old, found.new, found.questions, found.changed) == (0.25, 0.6, 2, 2)


def test_few_changed_questions_are_noise_and_many_are_not() -> None:
    def changed(number: int) -> str:
        old = [record(n, answer_right=(0, 1)) for n in range(40)]
        new = [record(n, answer_right=(float(n < number), 1)) for n in range(40)]
        return differences(run_of(*old), run_of(*new))[0].verdict

    assert [changed(number) for number in (0, 3, 20)] == ["same", "noise", "better"]


def test_more_failures_are_worse() -> None:
    old, new = ([record(n, errors=(failed, 1)) for n in range(20)] for failed in (0.0, 1.0))
    assert differences(run_of(*old), run_of(*new))[0].verdict == "worse"


def test_an_interval_is_wide_for_few_questions_and_none_for_equal_ones() -> None:
    few, many = (interval([(float(n % 2), 1.0) for n in range(number)]) for number in (10, 1000))
    assert few[0] < many[0] < 0.5 < many[1] < few[1]
    assert interval([(1.0, 1.0)] * 5) == (1, 1)
