"""The rules by which a window is dealt out, on small conversations and over long ones."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings

from rag.budget import STEP, Room, first_turn, newest_turns, number_that_fits, share
from rag.profile import LARGE, SMALL, Profile
from tests.conversations import CASES, Case, check
from tests.fakes import ScriptedEngine, byte_tokenizer
from tests.rag.conftest import passage
from tests.rag.test_conversation import talk_on

TERSE = replace(LARGE, system="A.", passages=3, history_turns=3)


@pytest.fixture(scope="module")
def engine() -> Any:
    from llm.prompting import PromptEncoder

    engine = ScriptedEngine(tokenizer=byte_tokenizer())
    engine.encoder = PromptEncoder(engine.tokenizer)
    return engine


@pytest.mark.parametrize("profile", [TERSE, replace(SMALL, system="A.", history_turns=3)], ids=["large", "small"])
@settings(max_examples=150)
@given(CASES)
def test_every_prompt_fits_and_wastes_less_than_a_passage(engine: Any, profile: Profile, case: Case) -> None:
    check(case, engine, profile)


def test_the_turns_that_are_left_out_change_in_steps_and_between_them_every_prompt_goes_on_from_the_last() -> None:
    talk = talk_on(window=2000, profile=replace(TERSE, history_turns=1000))
    firsts, opened = [], []
    for number in range(60):
        found = [passage(f"Passage {number} of turn {number}. " * 4)]
        prompt = talk.ask(f"Question {number}?", found, f"Answer {number} [1].")
        assert prompt.tokens and prompt.tokens <= 1900
        firsts.append(prompt.dropped_turns)
        opened.append([message.text for message in prompt.messages])
    steps = [later - earlier for earlier, later in pairwise(firsts) if later != earlier]
    assert min(steps) >= 2
    assert len(steps) <= 60 * 230 / (2000 / STEP)
    for (earlier, first), (later, then) in pairwise(zip(opened, firsts, strict=True)):
        assert first != then or later[: len(earlier)] == earlier


@pytest.mark.parametrize(("most", "first"), [(0, [0, 1, 2, 3]), (1, [0, 0, 1, 2]), (20, [0, 0, 0, 0])])
def test_no_more_than_the_profiles_turns_are_kept(most: int, first: list[int]) -> None:
    assert [newest_turns(number, most) for number in range(4)] == first


def test_more_turns_than_the_profiles_go_in_steps_of_a_quarter_of_them() -> None:
    assert [newest_turns(number, 20) for number in range(18, 33)] == [0] * 3 + [5] * 5 + [10] * 5 + [15] * 2


@pytest.mark.parametrize(
    ("turns", "needed", "first"),
    [
        ([], 100, 0),
        ([50, 50], 100, 0),
        ([50, 51], 100, 2 - 1),
        ([30, 30, 30, 30], 100, 2),
        ([30, 30, 30, 300], 100, 4),
        ([10, 10, 150], 50, 2),
    ],
)
def test_turns_go_in_multiples_of_a_step_and_the_last_one_stays_when_it_fits(turns, needed, first) -> None:
    assert first_turn(turns, needed, left=200, step=50) == first


def test_passages_leave_the_conversation_a_quarter_but_the_best_one_always_has_its_place() -> None:
    assert share([30, 30, 30, 30], 1000, 100) == 60
    assert share([30, 30, 30], 5, 100) == 90
    assert share([90, 5], 1000, 100) == 90
    assert share([500], 1000, 100) == 100
    assert share([], 1000, 100) == 0
    assert number_that_fits([3, 3, 3], 6) == 2


@pytest.mark.parametrize(
    ("window", "base", "answer", "prompt"),
    [(1000, 100, 300, 700), (1000, 100, 5000, 500), (1000, 450, 500, 575), (1000, 900, 500, 950), (10, 9, 5, 9)],
)
def test_the_answer_gets_what_it_asks_for_up_to_half_and_gives_a_place_to_a_passage(
    window, base, answer, prompt
) -> None:
    assert Room(window, base, answer).prompt == prompt
