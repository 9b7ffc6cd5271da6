"""Engine options as vLLM's own configuration reads them; nothing is started."""

import importlib.util
import multiprocessing
import re
from operator import attrgetter
from typing import Any

import pytest

from llm.engine import Engine
from llm.models import resolve
from llm.option_names.engine_fields import engine_fields
from llm.option_names.older_sampling_options import SAMPLING
from llm.options import EngineOptions, SamplingOptions
from llm.protocol import EngineStartFailed
from llm.starting.launch import configure, prepare_environment


def configured(**options: Any) -> Any:
    """vLLM's configuration of the small model with these options."""
    prepare_environment()
    given = EngineOptions(**{"max_model_len": 2048, "kv_cache_gib": 0.1} | options)
    return configure(given, resolve(given.model))


NGRAMS = {"speculative_model": "[ngram]", "num_speculative_tokens": 3}
LOOKUP = {"ngram_prompt_lookup_max": 4, "ngram_prompt_lookup_min": 2}


@pytest.mark.parametrize(
    ("options", "place", "value"),
    [
        ({"guided_decoding_backend": "outlines:no-fallback"}, "structured_outputs_config.backend", "outlines"),
        ({"task": "generate"}, "model_config.runner", "generate"),
        (NGRAMS, "speculative_config.method", "ngram"),
        (NGRAMS, "speculative_config.num_speculative_tokens", 3),
        (NGRAMS | LOOKUP, "speculative_config.prompt_lookup_max", 4),
        (NGRAMS | LOOKUP, "speculative_config.prompt_lookup_min", 2),
        ({"max_model_len": "2k"}, "model_config.max_model_len", 2000),
        ({"vllm_kwargs": {"seed": 3, "swap_space": 4}}, "model_config.seed", 3),
        ({"seed": "4"}, "model_config.seed", 4),
    ],
)
def test_an_older_name_reaches_vllms_configuration(options: dict[str, Any], place: str, value: Any) -> None:
    assert attrgetter(place)(configured(**options)) == value


def test_an_older_name_asks_for_ray() -> None:
    if importlib.util.find_spec("ray"):
        assert configured(worker_use_ray=True).parallel_config.distributed_executor_backend == "ray"
        return
    with pytest.raises(EngineStartFailed, match="Ray"):
        started(worker_use_ray=True)


def test_rope_scaling_changes_what_it_says_and_nothing_else() -> None:
    own = configured().model_config.hf_config.rope_parameters
    scaled = configured(rope_scaling={"type": "linear", "factor": 2.0}, max_model_len=None).model_config
    assert scaled.hf_config.rope_parameters == own | {"rope_type": "linear", "factor": 2.0}
    assert scaled.max_model_len == 2 * configured(max_model_len=None).model_config.max_model_len
    turned = configured(rope_theta=5000).model_config
    assert turned.hf_config.rope_parameters == own | {"rope_theta": 5000.0}


def test_a_quantization_that_vllm_lacks_is_refused_with_those_it_has() -> None:
    with pytest.raises(EngineStartFailed, match=r"squeezellm.*'awq'.*'gptq'"):
        started(quantization="squeezellm")


def started(**options: Any) -> None:
    with Engine.start_in_thread(EngineOptions(**{"max_model_len": 2048, "kv_cache_gib": 0.1} | options)):
        pass


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("dtype", "float99", "dtype.*'bfloat16'"),
        ("scheduling_policy", "lifo", "'fcfs' or 'priority'"),
        ("max_model_len", 10**6, "1000000.*8192"),
        ("max_lora_rank", 5, "max_lora_rank.*8, 16"),
        ("structured_outputs_config", {"backend": "x"}, "structured_outputs_config.*'xgrammar'"),
        ("compilation_config", {"nope": 1}, "nope.*[Uu]nexpected"),
        ("reasoning_config", {"nope": 1}, r"reasoning_config\.nope.*[Uu]nexpected"),
        ("attention_backend", "x", "attention backend.*FLASH_ATTN"),
        ("tensor_parallel_size", 2, r"heads \(9\).*\(2\)"),
        ("runner", "x", "runner.*'generate'"),
        ("kv_cache_gib", 10_000, r"needs 10000\.0 GiB, .* GiB are free: lower kv_cache_gib"),
    ],
)
def test_a_value_that_vllm_refuses_is_named_before_anything_starts(name: str, value: Any, expected: str) -> None:
    before = multiprocessing.active_children()
    with pytest.raises(EngineStartFailed) as refused:
        started(**{name: value, "enable_lora": name == "max_lora_rank"})
    assert re.search(expected, str(refused.value)), refused.value
    assert multiprocessing.active_children() == before


def test_the_fields_read_from_the_source_are_vllms() -> None:
    from llm import vllm_names

    there = {name for name in vllm_names.AsyncEngineArgs.__dataclass_fields__ if name[0] != "_"}
    assert engine_fields().keys() == there


def test_every_sampling_option_of_vllm_is_one_of_ours_or_is_refused_with_the_reason() -> None:
    from llm import vllm_names

    fields = {name for name in vllm_names.SamplingParams.__struct_fields__ if name[0] != "_"}
    internal = {"output_text_buffer_length"}
    assert fields - internal <= {*SamplingOptions.model_fields, *SAMPLING}
