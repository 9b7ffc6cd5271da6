"""What vLLM is asked for, by vLLM's own classes; needs no engine."""

import pytest

from llm.options import SamplingOptions
from llm.translation import beam_search_params, refusal_of, sampling_params


@pytest.mark.parametrize(
    "options, asked",
    [
        ({"max_tokens": 2**31 - 1}, 90),  # vLLM 0.26 on a GPU dies of prompt + max_tokens beyond 32 bits
        ({"max_tokens": 90}, 90),
        ({"max_tokens": 7}, 7),
        ({"max_tokens": 2**31 - 1, "max_length": 30}, 20),
        ({"max_tokens": 200, "min_tokens": 150}, 150),
    ],
)
def test_no_more_is_asked_for_than_the_window_holds(options: dict[str, int], asked: int) -> None:
    sampling = SamplingOptions(**options)
    assert sampling_params(sampling, {}, prompt_tokens=10, window=100).max_tokens == asked
    assert beam_search_params(sampling, prompt_tokens=10, window=100).max_tokens == asked


def test_a_number_too_large_to_be_sent_is_the_callers_mistake() -> None:
    assert type(refusal_of(OverflowError("can't serialize ints"))).__name__ == "InvalidRequest"


def test_a_refusal_does_not_say_where_in_a_library_it_was_written() -> None:
    error = ValueError("Failed: [11:55:09] /project/cpp/json_schema_converter.cc:4944: minLength is above maxLength")
    assert str(refusal_of(error)) == "Failed: minLength is above maxLength"
