import math
from typing import Any

import pytest
from pydantic import ValidationError

from llm.options import EmbedderOptions, EngineOptions, Options, SamplingOptions, refuse_unknown


@pytest.mark.parametrize(
    ("options", "given", "nearest"),
    [
        (EngineOptions, "max_modellen", "max_model_len"),
        (SamplingOptions, "temprature", "temperature"),
        (EmbedderOptions, "batchsize", "batch_size"),
    ],
)
def test_an_unknown_name_names_the_nearest(options: type[Options], given: str, nearest: str) -> None:
    with pytest.raises(ValidationError, match=f"{options.__name__} has no option '{given}'; did you mean '{nearest}'"):
        options(**{given: 1})


def test_a_name_near_to_none_is_refused_without_a_guess() -> None:
    with pytest.raises(ValueError, match=r"a thing has no option 'zzz'$"):
        refuse_unknown("zzz", ["alpha"], what="a thing")


def test_a_known_name_passes() -> None:
    refuse_unknown("alpha", ["alpha"], what="a thing")


@pytest.mark.parametrize("options", [EngineOptions(), SamplingOptions(), EmbedderOptions()])
def test_options_are_frozen(options: Options) -> None:
    name = next(iter(type(options).model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(options, name, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_model_len", 0),
        ("gpu_memory_utilization", 0),
        ("gpu_memory_utilization", 1.01),
        ("kv_cache_gib", 0),
        ("kv_cache_gib", math.inf),
        ("tensor_parallel_size", 0),
        ("max_num_seqs", 0),
    ],
)
def test_the_engine_refuses_what_is_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=name):
        EngineOptions(**{name: value})


OUT_OF_RANGE = [
    ("max_tokens", 0),
    ("max_tokens", "5"),
    ("temperature", -1),
    ("temperature", 2.01),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", "0.5"),
    ("temperature", True),
    ("temperature", None),
    ("top_p", 0),
    ("top_p", 1.01),
    ("top_p", math.nan),
    ("top_k", -2),
    ("min_p", -0.1),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("repetition_penalty", 0),
    ("seed", 2**80),
    ("seed", 2**63),
    ("seed", "7"),
    ("stop", "END"),
    ("stop", ["x"] * 10_000),
    ("stop", [1]),
    ("ignore_eos", "yes"),
]


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_sampling_refuses_what_is_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=name):
        SamplingOptions(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 1),
        ("temperature", 0),
        ("temperature", 2),
        ("top_p", 1),
        ("top_k", -1),
        ("min_p", 0),
        ("presence_penalty", -2),
        ("repetition_penalty", 2),
        ("seed", -(2**63)),
        ("seed", 2**63 - 1),
        ("stop", ["x"] * 16),
    ],
)
def test_the_ends_of_a_range_are_inside(name: str, value: Any) -> None:
    assert getattr(SamplingOptions(**{name: value}), name) == value


def test_an_answer_is_longer_than_vllms_sixteen_tokens_by_default() -> None:
    assert SamplingOptions().max_tokens == 512
