"""Several choices of one prompt, collected from an engine."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm.choices import collect, several, whole
from llm.options import SamplingOptions
from llm.protocol import Candidate, Delta, EngineUnavailable, TokenLogprobs
from tests.fakes import ScriptedEngine
from tests.llm.conftest import until

CHOICES = ("a long one", "one", "三 四", "two")


@pytest.fixture
async def engine() -> ScriptedEngine:
    return ScriptedEngine(CHOICES)


async def texts(engine: ScriptedEngine, **sampling: Any) -> list[str]:
    options = SamplingOptions(**{"temperature": 1.0} | sampling)
    return [whole(deltas).text for deltas in await collect(engine, [1], options)]


@pytest.mark.parametrize(
    ("sampling", "answer"),
    [
        ({}, False),
        ({"best_of": 1}, False),
        ({"n": 2, "temperature": 1.0}, True),
        ({"best_of": 2, "temperature": 1.0}, True),
        ({"use_beam_search": True, "best_of": 2}, True),
    ],
    ids=str,
)
def test_what_has_one_choice_known_from_the_start_can_be_streamed(sampling: dict[str, Any], answer: bool) -> None:
    assert several(SamplingOptions(**sampling)) is answer


async def test_choices_stay_apart_in_the_order_they_were_drawn(engine: ScriptedEngine) -> None:
    assert await texts(engine, n=4) == [*CHOICES]


async def test_one_choice_is_collected_too(engine: ScriptedEngine) -> None:
    engine.replies = ["alone"]
    assert await texts(engine) == ["alone"]


@pytest.mark.parametrize("n", [1, 2, 4])
async def test_best_of_keeps_the_likeliest_best_first(engine: ScriptedEngine, n: int) -> None:
    assert await texts(engine, best_of=4, n=n) == ["one", "三 四", "two", "a long one"][:n]


async def test_best_of_one_is_what_was_drawn(engine: ScriptedEngine) -> None:
    engine.replies = ["alone"]
    assert await texts(engine, best_of=1) == ["alone"]


async def test_beams_come_whole_and_best_first(engine: ScriptedEngine) -> None:
    sampling = SamplingOptions(use_beam_search=True, best_of=4, n=2)
    beams = await collect(engine, [1, 2], sampling, adapter="law")
    assert [[delta.text for delta in beam] for beam in beams] == [["one"], ["三 四"]]
    assert (engine.submitted[0].prompt_ids, engine.submitted[0].adapter) == ([1, 2], "law")


async def test_adapter_and_reasoning_reach_the_engine(engine: ScriptedEngine) -> None:
    sampling = SamplingOptions(n=4, temperature=1.0)
    await collect(engine, [7], sampling, adapter="law", reasoning_ended=False)
    (submitted,) = engine.submitted
    assert (submitted.prompt_ids, submitted.adapter, submitted.reasoning_ended) == ([7], "law", False)


async def test_a_failure_is_raised_and_leaves_nothing(engine: ScriptedEngine) -> None:
    engine.replies = [EngineUnavailable("dead")]
    with pytest.raises(EngineUnavailable, match="dead"):
        await texts(engine, n=2)
    assert engine.unfinished == 0


@pytest.mark.parametrize("sampling", [{"n": 4}, {"best_of": 4}, {"use_beam_search": True, "best_of": 4}], ids=str)
async def test_a_cancelled_collection_frees_the_engine(engine: ScriptedEngine, sampling: dict[str, Any]) -> None:
    engine.gate = asyncio.Event()
    task = asyncio.ensure_future(texts(engine, **sampling))
    await until(lambda: engine.unfinished == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.unfinished == 0


def place(token: int) -> TokenLogprobs:
    candidate = Candidate(token, chr(token), -1.0)
    return TokenLogprobs(candidate, [candidate])


@given(st.lists(st.text(max_size=5), min_size=1))
def test_a_choice_put_together_is_all_that_its_deltas_said(pieces: Sequence[str]) -> None:
    deltas = [
        Delta(piece, [*map(ord, piece)], logprobs=[place(ord(character)) for character in piece]) for piece in pieces
    ]
    first = Delta("", [], prompt_logprobs=[None])
    last = Delta("!", [33], "stop", "!", 5, 2, [place(33)], -3.0)
    together = whole([first, *deltas, last])
    said = "".join(pieces) + "!"
    ids = [*map(ord, said)]
    assert together == Delta(said, ids, "stop", "!", 5, 2, [*map(place, ids)], -3.0, [None])


def test_a_choice_without_log_probabilities_has_none() -> None:
    assert whole([Delta("a", [1]), Delta("b", [2], "stop")]) == Delta("ab", [1, 2], "stop")
