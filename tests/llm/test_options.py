import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from llm.option_names import engine_fields
from llm.options import EmbedderOptions, EngineOptions, Options, SamplingOptions, refuse_unknown


@pytest.mark.parametrize(
    ("options", "given", "nearest"),
    [
        (EngineOptions, "max_modellen", "max_model_len"),
        (EngineOptions, "enforce_eagr", "enforce_eager"),
        (EngineOptions, "swap_spac", "swap_space"),
        (SamplingOptions, "guided_jso", "guided_json"),
        (SamplingOptions, "temprature", "temperature"),
        (EmbedderOptions, "batchtokens", "batch_tokens"),
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
        ("max_model_len", -2),
        ("max_model_len", "much"),
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
    ("stop", ["x"] * 10_000),
    ("stop", [1]),
    ("stop", [""]),
    ("stop", ["\ud800"]),
    ("ignore_eos", "yes"),
    ("min_tokens", -1),
    ("min_tokens", 2**80),
    ("max_length", 0),
    ("n", 0),
    ("n", 129),
    ("best_of", 0),
    ("top_k", 2**80),
    ("min_p", 1.1),
    ("length_penalty", math.inf),
    ("logprobs", -2),
    ("prompt_logprobs", -2),
    ("priority", 2**80),
    ("thinking_token_budget", -2),
    ("logit_bias", {5: 101}),
    ("logit_bias", {5: math.nan}),
    ("logit_bias", {"five": 1}),
    ("logit_bias", [5]),
    ("stop_token_ids", ["5"]),
    ("allowed_token_ids", 5),
    ("bad_words", [""]),
    ("bad_words", ["\ud800"]),
    ("cache_salt", ""),
    ("structured_outputs", "[0-9]"),
    ("structured_outputs", {}),
    ("structured_outputs", {"regex": 5}),
    ("structured_outputs", {"choice": "a"}),
    ("structured_outputs", {"choice": [5]}),
    ("structured_outputs", {"whitespace_pattern": " "}),
    ("structured_outputs", {"regex": "a", "json": {}}),
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


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingOptions(stop="终").stop == ["终"]
    assert SamplingOptions(stop=None).stop == SamplingOptions(stop=()).stop == []


def test_a_bias_takes_the_keys_of_json() -> None:
    assert SamplingOptions(logit_bias={"7": -1, 8: 1.5}).logit_bias == {7: -1, 8: 1.5}


def test_a_constraint_of_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(ValidationError, match="structured_outputs has no option 'regexp'; did you mean 'regex'"):
        SamplingOptions(structured_outputs={"regexp": "a"})


def test_a_constraint_is_taken_as_vllms_own_class() -> None:
    given = SimpleNamespace(json=None, regex="[0-9]", disable_any_whitespace=False, _backend=None)
    assert SamplingOptions(structured_outputs=given).structured_outputs == {"regex": "[0-9]"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 3}, "n 3 at temperature 0 .* set temperature above 0"),
        ({"best_of": 3}, "best_of 3 at temperature 0 .* set temperature above 0"),
        ({"n": 3, "best_of": 2, "temperature": 1.0}, "best_of 2 is less than n 3"),
        ({"n": 3, "best_of": 2, "use_beam_search": True}, "best_of 2 is less than n 3"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens 9 is more than max_tokens 8"),
        ({"min_tokens": 513}, "min_tokens 513 is more than max_tokens 512"),
        ({"length_penalty": 2.0}, "length_penalty 2.0 .* set use_beam_search"),
        ({"use_beam_search": True}, "one beam .* set best_of"),
        ({"use_beam_search": True, "n": 2, "stop": ["x"]}, "stop is not carried out by vLLM's beam search"),
        ({"use_beam_search": True, "n": 2, "top_p": 0.5}, "top_p is not carried out"),
        ({"use_beam_search": True, "n": 2, "seed": 0}, "seed is not carried out"),
        ({"use_beam_search": True, "n": 2, "skip_special_tokens": False}, "skip_special_tokens is not"),
        ({"use_beam_search": True, "n": 2, "structured_outputs": {"regex": "a"}}, "structured_outputs is not"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused_with_the_mend(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SamplingOptions(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"n": 2, "temperature": 0.1},
        {"best_of": 1},
        {"best_of": 3, "n": 2, "temperature": 1.0},
        {"use_beam_search": True, "n": 2, "best_of": 4, "length_penalty": 0.5, "ignore_eos": True, "max_length": 9},
        {"length_penalty": 1.0},
        {"min_tokens": 8, "max_tokens": 8},
    ],
    ids=str,
)
def test_what_goes_together_is_taken(options: dict[str, Any]) -> None:
    assert SamplingOptions(**options).model_dump(exclude_unset=True) == options


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The source of another vLLM, with few fields."""
    source = tmp_path / "engine" / "arg_utils.py"
    source.parent.mkdir()
    source.write_text(
        "class EngineArgs:\n"
        "    seed: int = 0\n"
        "    cpu_share: float = 1.0\n"
        "    names: str | list[str] | None = None\n"
        "    place: str | None = None\n"
        "    eager: bool = False\n"
        "    limits: dict[str, int] = {}\n"
        "    sizes: list[int] | None = None\n"
        "    mode: Literal['on', 'off'] = 'on'\n"
        "    compilation: CompilationConfig = None\n"
        "    quoted: 'dict[str, Any] | Later | None' = None\n"
        "    _private: int = 0\n"
        "class AsyncEngineArgs(EngineArgs):\n"
        "    log: bool | None = None\n"
    )
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(engine_fields.importlib.util, "find_spec", lambda name: spec)
    engine_fields.engine_fields.cache_clear()
    yield source
    engine_fields.engine_fields.cache_clear()


def test_the_fields_of_the_installed_vllm_are_options(vllm: Path) -> None:
    options = EngineOptions(seed=1, log=True, model="x", compilation={"level": 3})
    assert options.vllm == {"seed": 1, "log": True, "compilation": {"level": 3}}
    for name in ("enforce_eager", "_private"):
        with pytest.raises(ValidationError, match=f"no option '{name}'"):
            EngineOptions(**{name: 1})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("seed", "7", 7),
        ("cpu_share", "0.5", 0.5),
        ("eager", "true", True),
        ("eager", "True", True),
        ("eager", "0", False),
        ("log", "null", None),
        ("place", "true", "true"),
        ("place", "[a]", "[a]"),
        ("names", "one", "one"),
        ("names", '["一", "二"]', ["一", "二"]),
        ("limits", '{"image": 2}', {"image": 2}),
        ("sizes", "[1, 2]", [1, 2]),
        ("mode", "off", "off"),
        ("compilation", '{"level": 3}', {"level": 3}),
        ("compilation", "3", 3),
        ("quoted", '{"a": 1}', {"a": 1}),
    ],
)
def test_text_becomes_what_the_field_wants(vllm: Path, name: str, text: str, value: Any) -> None:
    assert EngineOptions(**{name: text}).vllm == {name: value}
    assert EngineOptions(**{name: value}).vllm == {name: value}


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", "seven"), ("seed", None), ("eager", "maybe"), ("sizes", ["a"]), ("mode", "dim"), ("limits", "[1]")],
)
def test_a_value_of_another_type_is_refused_with_name_value_and_what_is_expected(
    vllm: Path, name: str, value: Any
) -> None:
    with pytest.raises(ValidationError, match=f"{name}: Input should be .*, not "):
        EngineOptions(**{name: value})


def test_without_vllm_any_name_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_fields.importlib.util, "find_spec", lambda name: None)
    engine_fields.engine_fields.cache_clear()
    assert EngineOptions(whatever="1").vllm == {"whatever": 1}
    monkeypatch.undo()
    engine_fields.engine_fields.cache_clear()


def test_engine_options_with_fields_of_vllm_are_frozen_and_comparable() -> None:
    options = EngineOptions(seed=1)
    with pytest.raises(ValidationError, match="frozen"):
        options.seed = 2  # type: ignore[attr-defined]
    assert options == EngineOptions(seed="1") != EngineOptions(seed=2)
    options.vllm["seed"] = 3
    assert options.vllm == {"seed": 1}


@pytest.mark.parametrize(
    ("given", "length"),
    [("auto", -1), (-1, -1), ("16k", 16_000), ("16K", 16_384), ("1.5k", 1500), ("2M", 2**21), ("4096", 4096), (1, 1)],
)
def test_the_window_is_read_as_vllms_command_line_reads_it(given: Any, length: int) -> None:
    assert EngineOptions(max_model_len=given).max_model_len == length
