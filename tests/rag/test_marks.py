"""Marks in a stream: what is one, what is left alone, and that no cutting of the text changes either."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rag.marks import Marks, without_marks

PIECES = [
    "[1]", "【2】", "［３］", "[1,2]", "[1-3]", "[", "]", "(", "`", "``", "```", "~~~", "\n", " ", "a", "manager", "1",
    "23", "0", ",", "-", ". ", "。", "，", "\\", "!", "f()", "x_1", "text][1]", "[1](https://a.example)", "[^1]",
    "    ", "汉",
]  # fmt: skip
WRITTEN = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


def numbers(text: str) -> list[tuple[int, ...]]:
    return [mark.numbers for mark in without_marks(text)[1]]


@pytest.mark.parametrize(
    ("text", "clean", "expected"),
    [
        ("Noon [1].", "Noon.", [(1,)]),
        ("Noon[1].", "Noon.", [(1,)]),
        ("Noon. [1]", "Noon.", [(1,)]),
        ("十二天【1】。", "十二天。", [(1,)]),
        ("十二天 【 1 】。", "十二天。", [(1,)]),
        ("十二天［１，２］。", "十二天。", [(1, 2)]),
        ("Noon [1, 2].", "Noon.", [(1, 2)]),
        ("Noon [1、2;3].", "Noon.", [(1, 2, 3)]),
        ("Noon [2-4].", "Noon.", [(2, 3, 4)]),
        ("Noon [1–2, 5].", "Noon.", [(1, 2, 5)]),
        ("Noon [1][2] [3].", "Noon.", [(1,), (2,), (3,)]),
        ("Noon [1, 1].", "Noon.", [(1,)]),
        ("Noon [0].", "Noon.", [(0,)]),
        ("In 2024[1].", "In 2024.", [(1,)]),
        ("[1] Noon.\n  [2] One.", "Noon.\nOne.", [(1,), (2,)]),
        ("Noon. [1]\n\nOne. [2]", "Noon.\n\nOne.", [(1,), (2,)]),
        ("a `b` [1]", "a `b`", [(1,)]),
        ("```\nx\n```\nNoon [1]", "```\nx\n```\nNoon", [(1,)]),
        ("`open\nNoon [1]", "`open\nNoon", [(1,)]),
    ],
)
def test_a_mark_is_taken_out_with_the_blank_before_it(text: str, clean: str, expected: list[tuple[int, ...]]) -> None:
    assert without_marks(text)[0] == clean
    assert numbers(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a[1] = b[2]", "rows_2[1]", "userNames[1]", "x1[2]", "f()[1]", "a[0][1]", r"\[1]", "see [1](https://a.example)",
        "[text][1]", "![1](a.png)", "[^1]", "[ ]", "[x]", "[]", "[1", "【1", "[1,", "[1]".replace("]", "】"), "[2024]",
        "[0, 1]", "[0-9]", "[3-1]", "`a [1]`", "``a ` [1]``", "```\nlist [1]\n```", "~~~py\nlist [1]\n~~~",
        "```\nopen [1]",        "   ```\n[1]\n````\n", "[1a]", "[one]", "1]", "[" + " " * 50 + "1]",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_mark_is_left_alone(text: str) -> None:
    assert without_marks(text) == (text, [])


def test_a_mark_knows_where_it_stood_and_whether_it_opens_its_line() -> None:
    text, marks = without_marks("[1] Noon.\nOne [2]. 两点【3】。")
    assert text == "Noon.\nOne. 两点。"
    assert [(text[: mark.position], mark.text, mark.leads) for mark in marks] == [
        ("", "[1]", True),
        ("Noon.\nOne", "[2]", False),
        ("Noon.\nOne. 两点", "【3】", False),
    ]


@example("Noon [1](x", [5, 6, 7, 8])
@example("``` [1]", [1, 2])
@example("[1] [1] a", [3])
@given(WRITTEN, st.lists(st.integers(0, 60)))
def test_no_cutting_changes_the_text_or_the_marks(text: str, cuts: list[int]) -> None:
    for places in (sorted(min(cut, len(text)) for cut in cuts), range(len(text))):
        marks = Marks()
        shown = "".join([marks.add(text[start:end]) for start, end in pairwise([0, *places, len(text)])])
        assert (shown + marks.end(), marks.found) == without_marks(text)


@given(st.text(alphabet="[]【】0123456789 ,-`~\n\\(a汉", max_size=60))
def test_nothing_but_marks_and_blanks_goes_lost(text: str) -> None:
    clean, marks = without_marks(text)
    rest = iter("".join(text.split()))
    assert all(character in rest for character in "".join(clean.split()))
    written = len("".join(text.split())) - len("".join(clean.split()))
    assert written == sum(len("".join(mark.text.split())) for mark in marks)


def test_text_that_cannot_become_a_mark_is_given_at_once() -> None:
    marks = Marks()
    given_out = [marks.add(piece) for piece in ["The can", "teen ", "opens", " [", "1", "]", " at noon ", "[x", "] ."]]
    assert given_out == ["The can", "teen", " opens", "", "", "", " at noon", " [x", "] ."]
    assert marks.end() == ""
