"""Names of older tutorials, and the table that lists them."""

import ast
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from llm.chat import ChatVLLM
from llm.option_names import older_names, option_table
from llm.option_names.engine_fields import engine_fields
from llm.option_names.older_engine_options import ENGINE, RopeParameters
from llm.option_names.older_sampling_options import SAMPLING
from llm.options import EngineOptions, Options, SamplingOptions
from llm.protocol import InvalidRequest
from tests.fakes import ScriptedEngine

ROOT = Path(__file__).parents[2]

# The fields of EngineArgs, AsyncEngineArgs and SamplingParams in vLLM 0.4.0 to 0.5.5.
ENGINE_THEN = re.findall(
    r"\w+",
    """
    model served_model_name tokenizer skip_tokenizer_init tokenizer_mode trust_remote_code download_dir load_format
    dtype kv_cache_dtype quantization_param_path seed max_model_len worker_use_ray distributed_executor_backend
    pipeline_parallel_size tensor_parallel_size max_parallel_loading_workers block_size enable_prefix_caching
    disable_sliding_window use_v2_block_manager swap_space cpu_offload_gb gpu_memory_utilization
    max_num_batched_tokens max_num_seqs max_logprobs disable_log_stats revision code_revision rope_scaling
    rope_theta tokenizer_revision quantization enforce_eager max_context_len_to_capture max_seq_len_to_capture
    disable_custom_all_reduce tokenizer_pool_size tokenizer_pool_type tokenizer_pool_extra_config
    limit_mm_per_prompt enable_lora max_loras max_lora_rank enable_prompt_adapter max_prompt_adapters
    max_prompt_adapter_token fully_sharded_loras lora_extra_vocab_size long_lora_scaling_factors lora_dtype
    max_cpu_loras device num_scheduler_steps ray_workers_use_nsight num_gpu_blocks_override num_lookahead_slots
    model_loader_extra_config ignore_patterns preemption_mode scheduler_delay_factor enable_chunked_prefill
    guided_decoding_backend speculative_model speculative_model_quantization speculative_draft_tensor_parallel_size
    num_speculative_tokens speculative_disable_mqa_scorer speculative_max_model_len
    speculative_disable_by_batch_size ngram_prompt_lookup_max ngram_prompt_lookup_min
    spec_decoding_acceptance_method typical_acceptance_sampler_posterior_threshold
    typical_acceptance_sampler_posterior_alpha qlora_adapter_name_or_path disable_logprobs_during_spec_decoding
    otlp_traces_endpoint collect_detailed_traces image_input_type image_token_id image_input_shape
    image_feature_size image_processor image_processor_revision disable_image_processor engine_use_ray
    disable_log_requests max_log_len
    """,
)
SAMPLING_THEN = re.findall(
    r"\w+",
    """
    n best_of presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed
    use_beam_search length_penalty early_stopping stop stop_token_ids include_stop_str_in_output ignore_eos
    max_tokens min_tokens logprobs prompt_logprobs detokenize skip_special_tokens spaces_between_special_tokens
    logits_processors truncate_prompt_tokens
    """,
)


@pytest.fixture(autouse=True)
def nothing_logged_yet() -> None:
    older_names._warn_once.cache_clear()


def test_every_name_of_then_is_known() -> None:
    assert set(ENGINE_THEN) <= {*EngineOptions.model_fields, *engine_fields(), *ENGINE}
    assert set(SAMPLING_THEN) <= {*SamplingOptions.model_fields, *SAMPLING}


def test_no_name_is_of_today_and_of_then() -> None:
    assert not {*EngineOptions.model_fields, *engine_fields()} & ENGINE.keys() - {"skip_tokenizer_init"}
    assert not SamplingOptions.model_fields.keys() & SAMPLING.keys()


@pytest.mark.parametrize(
    ("older", "today"),
    [
        ({"worker_use_ray": True}, {"distributed_executor_backend": "ray"}),
        ({"worker_use_ray": False}, {}),
        ({"worker_use_ray": "true"}, {"distributed_executor_backend": "ray"}),
        ({"disable_log_requests": True}, {}),
        ({"disable_log_requests": False}, {"enable_log_requests": True}),
        ({"guided_decoding_backend": "outlines"}, {"structured_outputs_config": {"backend": "outlines"}}),
        ({"guided_decoding_backend": "xgrammar:no-fallback"}, {"structured_outputs_config": {"backend": "xgrammar"}}),
        (
            {"num_speculative_tokens": 3, "speculative_model": "草稿", "speculative_max_model_len": "9"},
            {"speculative_config": {"model": "草稿", "num_speculative_tokens": 3, "max_model_len": 9}},
        ),
        ({"speculative_model": "[ngram]"}, {"speculative_config": {"method": "ngram"}}),
        (
            {"speculative_config": {"model": "a"}, "num_speculative_tokens": 2},
            {"speculative_config": {"model": "a", "num_speculative_tokens": 2}},
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5},
            {"hf_overrides": RopeParameters((("rope_type", "linear"), ("factor", 2.0), ("rope_theta", 5.0)))},
        ),
        ({"task": "generate"}, {"runner": "generate"}),
        ({"quantization_param_path": None, "enable_prompt_adapter": False, "skip_tokenizer_init": False}, {}),
        ({"swap_space": 4, "max_context_len_to_capture": 8192, "use_v2_block_manager": True, "device": "cuda"}, {}),
    ],
    ids=lambda options: "+".join(options) or "nothing",
)
def test_an_engine_option_of_then_becomes_todays(older: dict[str, Any], today: dict[str, Any]) -> None:
    assert EngineOptions(**older).vllm == today


class Weather(BaseModel):
    city: str


@pytest.mark.parametrize(
    ("older", "today"),
    [
        ({"max_completion_tokens": 7}, {"max_tokens": 7}),
        ({"max_completion_tokens": 7, "max_tokens": 7}, {"max_tokens": 7}),
        ({"max_new_tokens": 7}, {"max_tokens": 7}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": False}, {"logprobs": None}),
        ({"logprobs": True, "top_logprobs": 5}, {"logprobs": 5}),
        ({"guided_json": {"type": "object"}}, {"structured_outputs": {"json": {"type": "object"}}}),
        ({"guided_json": Weather}, {"structured_outputs": {"json": Weather.model_json_schema()}}),
        ({"guided_regex": "[1]"}, {"structured_outputs": {"regex": "[1]"}}),
        ({"guided_choice": ["是", "否"]}, {"structured_outputs": {"choice": ["是", "否"]}}),
        ({"guided_grammar": "root ::= x"}, {"structured_outputs": {"grammar": "root ::= x"}}),
        (
            {"guided_json": {}, "guided_whitespace_pattern": " ?"},
            {"structured_outputs": {"json": {}, "whitespace_pattern": " ?"}},
        ),
        ({"guided_decoding": {"regex": "a", "backend": "outlines"}}, {"structured_outputs": {"regex": "a"}}),
        (
            {"guided_decoding": SimpleNamespace(json=None, choice=["甲"], backend="x", disable_fallback=False)},
            {"structured_outputs": {"choice": ["甲"]}},
        ),
        ({"early_stopping": False, "logits_processors": [], "best_of": None, "detokenize": True}, {"best_of": None}),
        ({"guided_json": None, "top_logprobs": None}, {}),
    ],
    ids=lambda options: "+".join(options) or "nothing",
)
def test_todays_options_of_an_older_name(older: dict[str, Any], today: dict[str, Any]) -> None:
    assert SamplingOptions(**older).model_dump(exclude_unset=True) == today


@pytest.mark.parametrize("name", ["vllm", "vllm_kwargs"])
def test_a_dict_of_vllms_options_is_spread(name: str) -> None:
    given = {name: {"seed": "3", "swap_space": 4, "disable_log_requests": False}, "enforce_eager": True}
    assert EngineOptions(**given).vllm == {"seed": 3, "enable_log_requests": True, "enforce_eager": True}
    with pytest.raises(ValidationError, match="did you mean 'enforce_eager'"):
        EngineOptions(**{name: {"enforce_eagr": True}})


def test_a_name_that_changes_nothing_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        EngineOptions(swap_space=4)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "swap_space: changes nothing any more" in caplog.text and "kv_offloading_size" in caplog.text
    EngineOptions(worker_use_ray=True, disable_log_requests=True, swap_space=None)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("options", "given", "reason"),
    [
        (SamplingOptions, {"early_stopping": True}, "beam search always goes on .* today: length_penalty"),
        (SamplingOptions, {"early_stopping": "never"}, "early_stopping cannot be had"),
        (SamplingOptions, {"logits_processors": [print]}, "logits_processors of the engine .* logit_bias, bad_words"),
        (SamplingOptions, {"truncate_prompt_tokens": 5}, "trim_messages"),
        (SamplingOptions, {"guided_json": {}, "guided_regex": "a"}, "one of json, regex.* not json, regex"),
        (EngineOptions, {"task": "embed"}, "task 'embed' cannot be had"),
        (EngineOptions, {"long_lora_scaling_factors": [4.0]}, "long_lora_scaling_factors cannot be had"),
        (EngineOptions, {"enable_prompt_adapter": True}, "no prompt adapters .* today: enable_lora"),
        (EngineOptions, {"rope_theta": 5.0, "hf_overrides": {"a": 1}}, "rope_theta and hf_overrides cannot both"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    options: type[Options], given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        options(**given)


ROWS = [(EngineOptions, row) for row in ENGINE.values()] + [(SamplingOptions, row) for row in SAMPLING.values()]


@pytest.mark.parametrize(("options", "row"), ROWS, ids=lambda part: getattr(part, "name", part.__class__.__name__))
def test_what_a_row_says_is_what_it_does(
    options: type[Options], row: older_names.OlderName, caplog: pytest.LogCaptureFixture
) -> None:
    """A value that asked for nothing then is silent; another one is translated, logged or refused as the row says."""
    for silent in row.asks_nothing:
        options(**{row.name: silent})
    assert not caplog.records
    if row.happens.startswith("refused"):
        with pytest.raises(ValidationError, match=f"{row.name} cannot be had"):
            options(**{row.name: "other"})
    elif row.happens.startswith("taken with a warning"):
        assert options(**{row.name: "other"}) == options()
        assert f"{row.name}: changes nothing" in caplog.text


TESTS = {
    node.name
    for path in (ROOT / "tests").rglob("test_*.py")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
}


@pytest.mark.parametrize("row", [*option_table.engine_rows(), *option_table.sampling_rows()], ids=lambda row: row.name)
def test_each_row_of_the_table_names_a_test_or_why_there_is_none(row: option_table.Row) -> None:
    assert row.shown in TESTS or row.shown.startswith("not here: "), f"{row.name} in llm/option_names/option_table.py"
    assert row.today == row.name or row.happens


def test_the_table_names_each_option_once() -> None:
    for rows in (option_table.engine_rows(), option_table.sampling_rows()):
        names = [row.name for row in rows]
        assert len(names) == len(set(names))


def test_the_document_is_what_the_code_says() -> None:
    document = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert document == option_table.document(), f"run {option_table.COMMAND}"
    assert option_table.COMMAND in document.splitlines()[0]


@pytest.mark.parametrize(
    "options",
    [
        {"max_completion_tokens": 7, "max_tokens": 512},
        {"max_new_tokens": 7, "max_completion_tokens": 8},
        {"logprobs": False, "top_logprobs": 3},
        {"guided_choice": ["甲"], "guided_regex": "乙"},
    ],
    ids=lambda options: "+".join(options),
)
def test_two_names_that_say_different_things_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"say one of them|one of json"):
        SamplingOptions(**options)
    with pytest.raises(InvalidRequest, match=r"say one of them|one of json"):
        ChatVLLM(engine=ScriptedEngine(), max_tokens=20)._sampling(None, options)


def test_a_name_of_the_call_holds_over_another_one_of_the_model() -> None:
    chat = ChatVLLM(engine=ScriptedEngine(), max_tokens=20)
    assert chat._sampling(None, {"max_new_tokens": 7}).max_tokens == 7
