"""Writes docs/options.md, the table of every option and every older name: `python -m llm.option_names.option_table`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from llm.option_names.older_engine_options import ENGINE
from llm.option_names.older_names import OlderName
from llm.option_names.older_sampling_options import SAMPLING
from llm.options import EngineOptions, Options, SamplingOptions

COMMAND = "python -m llm.option_names.option_table > docs/options.md"


class Row(NamedTuple):
    """One line. `shown` is the test that shows the effect on a real engine, or why no test on this machine can."""

    name: str
    today: str
    happens: str
    since: str
    shown: str


NO_GPU = "not here: a GPU's"
NO_HUB = "not here: a model of the hub's, and a folder has none"
SPEED = "not here: changes speed or memory, no answer"
WINDOW = "test_the_window_is_what_fits_the_memory"
ADAPTER = "test_an_adapter_answers_otherwise_up_to_the_rank"
QUEUE = "test_so_many_requests_run_at_once_first_come_first_served"
PROCESSOR = "test_a_logits_processor_gets_the_requests_arguments"
BUDGET = "test_reasoning_ends_at_its_budget"
LOG = "test_requests_are_logged_when_asked_for"
PARSER = "not here: the small model has no such format of its own"

OURS = {
    "model": "test_all_ways_of_calling_give_the_same_text",
    "max_model_len": WINDOW,
    "dtype": "test_the_type_of_the_weights_changes_the_logprobs",
    "gpu_memory_utilization": NO_GPU,
    "kv_cache_gib": WINDOW,
    "tensor_parallel_size": "not here: one processor",
    "adapters": ADAPTER,
    "max_adapters": ADAPTER,
    "max_num_seqs": QUEUE,
    "fast_start": SPEED,
    "restart": "test_an_idle_engine_that_dies_is_noticed_and_started_again",
    "tool_call_parser": PARSER,
    "reasoning_parser": PARSER,
}
"""Engine options of ours: the test of each."""

FIELDS = {
    "tokenizer": (
        "",
        "folder or hub id of another tokenizer, with its template",
        "test_the_template_is_the_tokenizers",
    ),
    "tokenizer_mode": ("", "auto, slow, mistral, …", "not here: the small model has one tokenizer"),
    "trust_remote_code": ("", "run Python code that comes with the model; off by default", NO_HUB),
    "revision": ("", "branch, tag or commit of the model", NO_HUB),
    "tokenizer_revision": ("", "the same of the tokenizer", NO_HUB),
    "code_revision": ("", "the same of its code", NO_HUB),
    "download_dir": ("", "where the hub's files are kept", NO_HUB),
    "load_format": ("", "how the weights are stored", "not here: there is one file of weights"),
    "quantization": (
        "",
        "awq, gptq, …, for weights made so; a method that vLLM lacks is refused with those it has",
        "test_a_quantization_that_vllm_lacks_is_refused_with_those_it_has",
    ),
    "kv_cache_dtype": ("", "type of the KV cache", NO_GPU),
    "seed": ("", "of all draws that have none of their own", "test_another_seed_draws_otherwise"),
    "enforce_eager": ("", "no CUDA graphs and no compilation; on a CPU on by default", SPEED),
    "disable_custom_all_reduce": ("", "of several GPUs", NO_GPU),
    "disable_sliding_window": ("", "", "not here: the small model has none"),
    "block_size": ("", "tokens in a block of the KV cache; on a CPU 32", "test_cached_prefixes_come_in_blocks"),
    "enable_prefix_caching": ("", "on by default", "test_without_prefix_caching_nothing_is_cached"),
    "enable_chunked_prefill": ("", "on by default", SPEED),
    "max_num_batched_tokens": ("", "tokens in one step; on a CPU 128, or 512 where it has AMX", SPEED),
    "max_logprobs": (
        "",
        "most that a request may ask for, twice the widest beam search",
        "test_more_logprobs_are_refused",
    ),
    "disable_log_stats": ("", "no metrics", "test_without_stats_there_are_no_metrics"),
    "enable_log_requests": ("0.10.1", "log each request", LOG),
    "served_model_name": ("", "the metrics' name of the model", "test_the_metrics_carry_the_served_name"),
    "enable_lora": ("", "on where adapters are named", ADAPTER),
    "max_lora_rank": ("", "highest rank of an adapter; read from those named", ADAPTER),
    "max_loras": ("", "set from max_adapters", ADAPTER),
    "max_cpu_loras": ("", "set from max_adapters", ADAPTER),
    "lora_dtype": ("", "", SPEED),
    "fully_sharded_loras": ("", "", NO_GPU),
    "distributed_executor_backend": (
        "",
        "mp, ray, …; on a CPU without a process of its own",
        "not here: one processor",
    ),
    "pipeline_parallel_size": ("", "GPUs that share one model by layers", NO_GPU),
    "max_parallel_loading_workers": ("", "", NO_GPU),
    "ray_workers_use_nsight": ("", "", NO_GPU),
    "cpu_offload_gb": ("", "weights kept in RAM", NO_GPU),
    "num_gpu_blocks_override": ("", "blocks of the KV cache", SPEED),
    "model_loader_extra_config": ("", "", "not here: there is one file of weights"),
    "ignore_patterns": ("", "", NO_HUB),
    "limit_mm_per_prompt": ("", "", "not here: the small model takes text only"),
    "otlp_traces_endpoint": ("", "", "not here: a collector's"),
    "collect_detailed_traces": ("", "", "not here: a collector's"),
    "kv_cache_memory_bytes": ("after 0.5", "in place of kv_cache_gib", WINDOW),
    "scheduling_policy": ("after 0.5", "priority by default; fcfs ignores it", QUEUE),
    "logits_processors": ("after 0.5", "classes or module:Class, run for every request", PROCESSOR),
    "structured_outputs_config": (
        "0.11",
        "backend of constraints: xgrammar by default",
        "test_a_backend_takes_its_schemas",
    ),
    "reasoning_config": ("after 0.5", "strings that begin and end the reasoning", BUDGET),
    "generation_config": (
        "after 0.5",
        "vllm: without the model's own defaults",
        "test_the_models_defaults_can_be_others",
    ),
    "override_generation_config": ("after 0.5", "the model's defaults", "test_the_models_defaults_can_be_others"),
    "hf_overrides": (
        "after 0.5",
        "changes to the model's configuration",
        "test_rope_scaling_changes_what_it_says_and_nothing_else",
    ),
    "speculative_config": ("after 0.5", "draft model or n-grams", SPEED),
}
"""Fields of vLLM's AsyncEngineArgs that tutorials name: since when, what they say, the test of each."""

DRAWN = {
    "max_tokens": ("", "test_max_tokens_cuts_and_the_reason_says_so"),
    "min_tokens": ("0.4", "test_min_tokens_puts_the_end_off"),
    "max_length": ("ours", "test_max_length_counts_the_prompt_too"),
    "n": ("", "test_n_choices_are_drawn_apart"),
    "best_of": ("ours since 0.12", "test_best_of_keeps_the_likeliest_of_what_was_drawn"),
    "use_beam_search": ("ours since 0.6.3", "test_the_best_beam_is_at_least_as_likely_as_the_greedy_answer"),
    "length_penalty": ("ours since 0.6.3", "test_length_penalty_decides_between_short_and_long_beams"),
    "temperature": ("", "test_temperature_draws_another_answer_than_the_likeliest"),
    **dict.fromkeys(("top_p", "top_k", "min_p"), ("", "test_a_draw_from_one_token_is_the_likeliest")),
    **dict.fromkeys(
        ("presence_penalty", "frequency_penalty", "repetition_penalty"), ("", "test_a_penalty_makes_repetition_rarer")
    ),
    "seed": ("", "test_a_seed_repeats_its_draw"),
    "stop": ("", "test_a_stop_string_ends_the_answer_before_it"),
    "stop_token_ids": ("", "test_a_stop_token_ends_the_answer_and_is_its_reason"),
    "include_stop_str_in_output": ("", "test_the_stop_string_stays_when_asked_for"),
    "ignore_eos": ("", "test_writing_goes_on_after_the_end_token"),
    "logprobs": ("", "test_logprobs_are_the_likeliest_tokens_best_first"),
    "prompt_logprobs": ("", "test_prompt_logprobs_have_a_place_for_each_token_but_the_first"),
    "skip_special_tokens": ("", "test_control_tokens_show_when_they_are_not_skipped"),
    "spaces_between_special_tokens": ("", "not here: tokenizers of bytes, as the small model's, put none"),
    "logit_bias": ("after 0.5", "test_a_bias_forces_and_bans_a_token"),
    "allowed_token_ids": ("after 0.5", "test_only_allowed_tokens_are_written"),
    "bad_words": ("after 0.5", "test_a_bad_word_is_not_written"),
    "structured_outputs": ("0.11", "test_a_constraint_is_obeyed"),
    "thinking_token_budget": ("after 0.5", BUDGET),
    "extra_args": ("after 0.5", PROCESSOR),
    "priority": ("after 0.5", "test_an_urgent_request_overtakes_the_queue"),
    "cache_salt": ("after 0.5", "test_another_salt_shares_no_prefix"),
}
"""Sampling options: since when, the test of each."""


def engine_rows() -> list[Row]:
    """Our own options, fields of vLLM that are passed on, older names."""
    ours = _described(EngineOptions, {name: ("", shown) for name, shown in OURS.items()})
    fields = [
        Row(name, name, f"passed on: {says}" if says else "passed on", *rest) for name, (*rest, says) in _ordered()
    ]
    return [*ours, *fields, *_older(ENGINE)]


def sampling_rows() -> list[Row]:
    """The options of a request, older names."""
    return [*_described(SamplingOptions, DRAWN), *_older(SAMPLING)]


def _ordered() -> Iterator[tuple[str, tuple[str, str, str]]]:
    return ((name, (since, shown, says)) for name, (since, says, shown) in FIELDS.items())


def _described(options: type[Options], said: Mapping[str, tuple[str, str]]) -> Iterator[Row]:
    for name, field in options.model_fields.items():
        yield Row(name, name, field.description or "", *said.get(name, ("", "")))


def _older(names: Mapping[str, OlderName]) -> Iterator[Row]:
    return (Row(row.name, row.today, row.happens, row.since, row.shown) for row in names.values())


def markdown(rows: Iterable[Row]) -> str:
    """The rows as a table."""
    heads = ["name", "today's name", "what happens", "since when", "shown by"]
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *map(_cells, rows))]
    return "\n".join([lines[0], "|---" * len(heads) + "|", *lines[1:]])


def _cells(row: Row) -> list[str]:
    code = (f"`{name}`" if name else "" for name in (row.name, row.today))
    shown = f"`{row.shown}`" if row.shown.startswith("test_") else row.shown
    return [cell.replace("|", "·") for cell in (*code, row.happens, row.since, shown)]


def document() -> str:
    """docs/options.md."""
    return f"""<!-- written by: {COMMAND} -->
# Options

Since when: the version of vLLM in which a name came, or in which an older name went; nothing, where vLLM 0.4 had it.
Shown by: the test below `tests/` that shows the effect on the real engine; "not here" where two cores without GPU and
network cannot show one. Of a name that is taken with a warning, or refused, it is the test of that.

## Engine

In `[engine]` of `groundwell.toml`, as `GROUNDWELL_ENGINE__NAME` in the environment, or as keywords of `EngineOptions`.
Every other field of the installed vLLM's `AsyncEngineArgs` is an option by its own name too; vLLM checks the values
before anything starts.

{markdown(engine_rows())}

## Sampling

Keywords of `ChatVLLM`, of `.bind()`, of a call, and of `SamplingOptions`.

{markdown(sampling_rows())}
"""


if __name__ == "__main__":
    print(document(), end="")
