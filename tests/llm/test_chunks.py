"""What the engine writes as LangChain's chunks."""

import itertools
import json
import math
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk

from llm.chunks import Chunks, answer_of, as_openai, opening
from llm.output import Reader, ToolCallFragment, Written
from llm.protocol import Candidate, Delta, TokenLogprobs


class ScriptedReader(Reader):
    """Finds in each delta what it is told."""

    def __init__(self, *found: Written, finish_reason: str = "stop") -> None:
        self._found, self._ending = iter(found), finish_reason

    def read(self, delta: Delta) -> Written:
        self.finish_reason = delta.finish_reason and self._ending
        return next(self._found)


def messages(deltas: Sequence[Delta], reader: Reader | None = None, *, top: int | None = None) -> list[AIMessageChunk]:
    chunks = Chunks(reader or Reader(), top=top)
    return [chunk.message for chunk in map(chunks.of, deltas)]  # type: ignore[misc]


def together(chunks: Sequence[AIMessageChunk]) -> AIMessageChunk:
    return reduce(add, chunks)


def place(*candidates: tuple[str, float]) -> TokenLogprobs:
    """The first is the one that stands there."""
    made = [Candidate(at, *candidate) for at, candidate in enumerate(candidates)]
    return TokenLogprobs(made[0], sorted(made, key=lambda candidate: -candidate.logprob))


# Text and ending


def test_the_first_chunk_is_empty_and_carries_the_prompts_tokens_and_the_model() -> None:
    message: Any = opening("law", input_tokens=7).message
    assert message.content == ""
    assert message.usage_metadata["input_tokens"] == message.usage_metadata["total_tokens"] == 7
    assert message.usage_metadata["output_tokens"] == 0
    assert message.response_metadata == {"model_name": "law", "model_provider": "vllm"}


def test_only_the_last_delta_ends_the_message_and_says_how() -> None:
    first, last = messages([Delta("a", [1]), Delta("", [2], "stop", "\n\n", cumulative_logprob=-2.5)])
    assert (first.chunk_position, first.response_metadata) == (None, {})
    assert last.chunk_position == "last"
    assert last.response_metadata == {"finish_reason": "stop", "stop_reason": "\n\n", "cumulative_logprob": -2.5}


def test_the_finish_reason_is_the_readers() -> None:
    (message,) = messages([Delta("", [1], "stop")], ScriptedReader(Written(), finish_reason="tool_calls"))
    assert message.response_metadata["finish_reason"] == "tool_calls"


# Usage


@given(
    st.lists(st.integers(0, 5), min_size=1),
    st.integers(1, 1000),
    st.integers(0, 1000),
)
def test_usage_adds_up(lengths: list[int], prompt: int, cached: int) -> None:
    deltas = [Delta("x", [0] * length, cached_tokens=cached) for length in lengths]
    whole = together([opening("m", input_tokens=prompt).message, *messages(deltas)])  # type: ignore[list-item]
    assert whole.usage_metadata == {
        "input_tokens": prompt,
        "output_tokens": sum(lengths),
        "total_tokens": prompt + sum(lengths),
        "input_token_details": {"cache_read": cached},
    }


def test_the_cached_tokens_count_once_whenever_the_engine_tells_them() -> None:
    chunks: list[Any] = messages([Delta("a", [1], cached_tokens=told) for told in (0, 32, 32)])
    assert [chunk.usage_metadata.get("input_token_details", {}).get("cache_read", 0) for chunk in chunks] == [0, 32, 0]


def test_tokens_of_reasoning_are_counted_apart() -> None:
    reader = ScriptedReader(
        Written(reasoning="hm", reasoning_tokens=1),
        Written(reasoning=" so", reasoning_tokens=1),
        Written("4"),
        Written("2"),
    )
    deltas = [Delta("", [1, 2]), Delta("", [3]), Delta("4", [4]), Delta("2", [5], "stop")]
    usage = together(messages(deltas, reader)).usage_metadata
    assert usage and usage["output_tokens"] == 5
    assert usage["output_token_details"] == {"reasoning": 2}


def test_without_reasoning_no_tokens_of_it_are_told() -> None:
    usage = together(messages([Delta("a", [1], "stop")])).usage_metadata
    assert usage and "output_token_details" not in usage


# Reasoning and tool calls


def test_reasoning_stands_beside_the_text_as_a_block_of_its_own() -> None:
    reader = ScriptedReader(Written(reasoning="让我"), Written(reasoning="想想"), Written("四十二"))
    whole = together(messages([Delta("", [1]), Delta("", [2]), Delta("", [3], "stop")], reader))
    assert whole.content == "四十二"
    assert whole.additional_kwargs == {"reasoning_content": "让我想想"}
    assert [block["type"] for block in whole.content_blocks] == ["reasoning", "text"]


def test_fragments_of_tool_calls_grow_together_by_their_index() -> None:
    pieces = [
        [ToolCallFragment(0, "call-a", "weather", "")],
        [ToolCallFragment(0, None, None, '{"city": "北')],
        [ToolCallFragment(0, None, None, '京"}'), ToolCallFragment(1, "call-b", "time", "{}")],
    ]
    reader = ScriptedReader(*(Written(tool_calls=piece) for piece in pieces), finish_reason="tool_calls")
    chunks = messages([Delta("", [1]), Delta("", [2]), Delta("", [3], "stop")], reader)
    assert [len(chunk.tool_call_chunks) for chunk in chunks] == [1, 1, 2]
    assert [(call["id"], call["name"], call["args"]) for call in together(chunks).tool_calls] == [
        ("call-a", "weather", {"city": "北京"}),
        ("call-b", "time", {}),
    ]


@pytest.mark.parametrize("cut", ['{"city": "Ber', '{"city": "Berlin"', '{"city": ', "{"])
def test_a_call_that_was_cut_is_an_invalid_one_in_the_whole_answer(cut: str) -> None:
    fragments = [ToolCallFragment(0, "call-a", "time", "{}"), ToolCallFragment(1, "call-b", "weather", cut)]
    reader = ScriptedReader(Written(tool_calls=fragments), finish_reason="length")
    message: Any = answer_of([opening("m", input_tokens=1), Chunks(reader).of(Delta("", [1], "length"))]).message
    assert [(call["id"], call["args"]) for call in message.tool_calls] == [("call-a", {})]
    assert [(call["id"], call["args"]) for call in message.invalid_tool_calls] == [("call-b", cut)]


def test_a_whole_answer_keeps_all_that_its_chunks_said() -> None:
    reader = ScriptedReader(Written("hi"), Written(tool_calls=[ToolCallFragment(0, "call-a", "time", '{"a":\n"\n"}')]))
    chunks = Chunks(reader, top=0)
    deltas = [Delta("hi", [1], logprobs=[place(("hi", -1.0))]), Delta("", [2], "stop")]
    message: Any = answer_of([opening("m", input_tokens=1), *map(chunks.of, deltas)]).message
    assert type(message) is AIMessage
    assert (message.content, message.tool_calls[0]["args"], message.invalid_tool_calls) == ("hi", {"a": "\n"}, [])
    assert message.usage_metadata["total_tokens"] == 3
    assert message.response_metadata.keys() == {
        "model_name",
        "model_provider",
        "logprobs",
        "finish_reason",
        "stop_reason",
    }


# Log-probabilities


def test_log_probabilities_have_the_shape_of_openais() -> None:
    assert as_openai([place(("汉", -0.5), ("a", -0.25))]) == [
        {
            "token": "汉",
            "logprob": -0.5,
            "bytes": [0xE6, 0xB1, 0x89],
            "top_logprobs": [
                {"token": "a", "logprob": -0.25, "bytes": [0x61]},
                {"token": "汉", "logprob": -0.5, "bytes": [0xE6, 0xB1, 0x89]},
            ],
        }
    ]


@pytest.mark.parametrize(("top", "told"), [(0, 0), (1, 1), (2, 2), (20, 3), (-1, 3), (None, 3)])
def test_as_many_likely_tokens_are_told_as_were_asked_for(top: int | None, told: int) -> None:
    (entry,) = as_openai([place(("a", -1.0), ("b", -2.0), ("c", -3.0))], top)
    assert [candidate["token"] for candidate in entry["top_logprobs"]] == ["a", "b", "c"][:told]


def test_log_probabilities_of_all_chunks_add_up_in_order() -> None:
    deltas = [
        Delta("ab", [1, 2], logprobs=[place(("a", -1.0)), place(("b", -2.0))]),
        Delta("", [3], logprobs=[place(("c", -3.0))]),
        Delta("", [], "stop", logprobs=None),
    ]
    content = together(messages(deltas, top=1)).response_metadata["logprobs"]["content"]
    assert [(entry["token"], entry["logprob"]) for entry in content] == [("a", -1.0), ("b", -2.0), ("c", -3.0)]


def test_log_probabilities_that_nobody_asked_for_are_not_told() -> None:
    (message,) = messages([Delta("a", [1], "stop", logprobs=[place(("a", -1.0))])])
    assert "logprobs" not in message.response_metadata


def test_the_prompts_log_probabilities_come_once_with_nothing_for_its_first_token() -> None:
    prompt = [None, place(("汉", -1.5))]
    chunks = messages([Delta("a", [1], prompt_logprobs=prompt), Delta("b", [2], "stop")])
    assert ["prompt_logprobs" in chunk.response_metadata for chunk in chunks] == [True, False]
    first, second = together(chunks).response_metadata["prompt_logprobs"]
    assert first is None
    assert (second["token"], second["logprob"], len(second["top_logprobs"])) == ("汉", -1.5, 1)


def test_a_token_that_a_grammar_excludes_has_a_number_that_json_can_write() -> None:
    written, excluded = Candidate(1, "长", 0.0), Candidate(2, "坏", -math.inf)
    (place,) = as_openai([TokenLogprobs(written, [written, excluded])], 2)
    assert [each["logprob"] for each in place["top_logprobs"]] == [0.0, -9999.0]
    json.dumps(place, allow_nan=False)


def test_half_a_character_does_not_break_the_bytes() -> None:
    (entry,) = as_openai([place(("\ud83d", -1.0), ("\ufffd", -2.0))])
    assert all(isinstance(byte, int) for each in entry["top_logprobs"] for byte in each["bytes"])


@given(st.lists(st.text(max_size=3), min_size=1))
def test_the_chunks_of_a_text_add_up_to_it(pieces: list[str]) -> None:
    numbers = itertools.count()
    deltas = [Delta(piece, [next(numbers)]) for piece in pieces]
    assert together(messages(deltas)).content == "".join(pieces)
