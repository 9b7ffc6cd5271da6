"""What a file of questions may hold, and how bad lines are told."""

import json
from pathlib import Path

import pytest

from rag.evaluation.cases import BadQuestions, read_cases
from tests.rag.evaluation.conftest import QUESTIONS

DATA = Path(__file__).parents[3] / "data"


@pytest.mark.parametrize("name", ["questions.jsonl", "followups.jsonl"])
def test_the_data_sets_of_the_repository_are_read(name: str) -> None:
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    cases = read_cases(DATA / name)
    assert [case.question for case in cases] == [json.loads(line)["question"] for line in lines]


def test_only_the_question_must_be_there(write) -> None:
    (case,) = read_cases(write({"question": " 年假有几天？ "}))
    assert (case.question, case.answerable, case.key) == ("年假有几天？", None, "年假有几天？")


def test_a_question_with_an_expected_answer_is_answerable(write) -> None:
    assert [case.answerable for case in read_cases(write(*QUESTIONS))] == [True, True, True, False]


def test_a_byte_order_mark_blank_lines_and_windows_line_ends_are_taken(write) -> None:
    file = write(b"\xef\xbb\xbf" + b'{"question": "a"}\r', "", " \t", '{"question": "b", "id": 7}')
    assert [case.key for case in read_cases(file)] == ["a", "7"]


def test_a_line_separator_inside_a_question_ends_no_line(write) -> None:
    assert [case.question for case in read_cases(write('{"question": "a\u2028b"}'))] == ["a\u2028b"]


def test_fields_of_the_users_own_are_left_alone(write) -> None:
    assert len(read_cases(write({"question": "a", "kind": "pronoun", "passage": "x", "standalone": None}))) == 1


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "not JSON at character 2"),
        ("[1]", "not an object"),
        ("null", "not an object"),
        ("[" * 100_000, "nested too deeply"),
        ({}, "has no `question`: add it"),
        ({"question": " \u3000"}, "question: is empty"),
        ({"question": 5}, "question: Input should be a valid string"),
        ('{"question": "\\ud800"}', "half a character"),
        ('{"question": "a", "question": "b"}', "'question' twice"),
        (b'{"question": "\xc4\xe3"}', "not UTF-8 at byte 15"),
        ({"question": "a", "anwser": "b"}, "no field is called 'anwser'; did you mean 'answer'?"),
        ({"question": "a", "files": "b"}, "did you mean 'file'?"),
        ({"question": "a", "pattern": "(25"}, "not a regular expression of Python"),
        ({"question": "a", "answer": "?!"}, "answer: holds no word"),
        ({"question": "a", "page": 3}, "has page without the file: add `file`"),
        ({"question": "a", "file": "b", "page": 0}, "page: Input should be greater than or equal to 1"),
        ({"question": "a", "file": ""}, "file: is empty"),
        ({"question": "a", "answerable": "perhaps"}, "answerable: Input should be a valid boolean"),
        ({"question": "a", "answerable": False, "file": "b", "answer": "c"}, "not answerable, but has file, answer"),
        ({"question": "a", "history": [{"role": "user", "content": "b"}]}, "history ends with the user"),
        ({"question": "a", "history": [{"role": "系统", "content": "b"}]}, "history.0.role: Input should be"),
        ({"question": "a", "history": "b"}, "history: Input should be a valid tuple"),
    ],
)
def test_a_bad_line_is_told_with_its_number_and_what_mends_it(write, line, told: str) -> None:
    with pytest.raises(BadQuestions) as raised:
        read_cases(write({"question": "good"}, line))
    assert "line 2: " in str(raised.value) and told in str(raised.value)


def test_all_bad_lines_are_told_at_once_and_many_are_counted(write) -> None:
    with pytest.raises(BadQuestions) as raised:
        read_cases(write(*["{}"] * 30))
    lines = str(raised.value).splitlines()
    assert lines[1].strip() == "line 1: has no `question`: add it"
    assert lines[-1].strip() == "… and 10 more" and len(lines) == 22


def test_two_questions_of_one_name_are_refused_as_they_could_not_be_compared(write) -> None:
    with pytest.raises(BadQuestions, match="line 3: has the id '1' of line 1"):
        read_cases(write({"question": "a", "id": 1}, {"question": "b"}, {"question": "c", "id": "1"}))
    with pytest.raises(BadQuestions, match="line 2: has the question of line 1"):
        read_cases(write({"question": "a"}, {"question": "a"}))


def test_a_file_without_questions_is_refused(write) -> None:
    with pytest.raises(BadQuestions, match="holds no question"):
        read_cases(write("", "\n"))
