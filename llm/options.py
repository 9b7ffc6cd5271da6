"""The options of the engine, of sampling and of the embedder; importing this file imports no vLLM."""

import difflib
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Options(BaseModel):
    """Base of every option class: frozen, and an unknown name is an error that names the nearest known one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _name_the_nearest(cls, values: Any) -> Any:
        if isinstance(values, dict):
            for name in values:
                refuse_unknown(name, cls.model_fields, what=cls.__name__)
        return values


def refuse_unknown(name: str, known: Any, *, what: str) -> None:
    """Raise ValueError for a name that is not in `known`, with the nearest name that is."""
    if name in known:
        return
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{what} has no option {name!r}{hint}")


class EngineOptions(Options):
    """What the engine is started with. Sizes are in tokens unless the name says otherwise.

    `vllm` passes any other field of `vllm.AsyncEngineArgs` through by its own name; vLLM's configuration checks
    the values before anything starts.
    """

    model: str = Field("HuggingFaceTB/SmolLM2-135M-Instruct", description="hub id, local folder or model wheel")
    max_model_len: int | None = Field(None, ge=1, description="context window in tokens; None: the model's own")
    dtype: str = Field("auto", description="weight type; auto: the model's own, float32 on a CPU without AVX-512")
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="share of the GPU's memory (GPU only)")
    kv_cache_gib: float = Field(1.0, gt=0, description="KV cache in GiB (CPU only)")
    tensor_parallel_size: int = Field(1, ge=1, description="GPUs that share one model")
    max_num_seqs: int | None = Field(None, ge=1, description="requests in one batch; None: 16 on CPU, vLLM's on GPU")
    fast_start: bool = Field(False, description="fork the engine instead of spawning it (tests; CPU only)")
    tool_call_parser: str = Field("auto", description="vLLM's parser of tool calls; auto: by the chat template")
    reasoning_parser: str = Field("auto", description="vLLM's parser of reasoning; auto: by the chat template")
    vllm: dict[str, Any] = Field(default_factory=dict, description="further fields of vllm.AsyncEngineArgs")


class SamplingOptions(Options):
    """How one answer is drawn, in vLLM's names and ranges (`vllm.SamplingParams`); None leaves the model's default.

    `best_of` draws so many choices and keeps the `n` with the highest cumulative log-probability, best first;
    `use_beam_search` keeps the `n` best of `n` beams. `max_length` counts the prompt too. `priority`: lower goes first.
    Requests with different `cache_salt` share no prefix in the cache.
    """

    model_config = ConfigDict(strict=True)  # a temperature of "0.5" or True is a mistake of the caller

    max_tokens: int = Field(512, ge=1, lt=2**31, description="tokens of the answer at most")
    min_tokens: int | None = Field(None, ge=0)
    max_length: int | None = Field(None, ge=1, description="tokens of prompt and answer at most")
    n: int = Field(1, ge=1, le=128, description="choices")
    best_of: int | None = Field(None, ge=1, le=128)
    use_beam_search: bool = False
    length_penalty: float | None = None
    temperature: float = Field(0.0, ge=0, le=2, description="0 takes the likeliest token")
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=2)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: list[str] = Field(default_factory=list, max_length=16)
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = Field(None, ge=-1, description="likeliest tokens reported for each place")
    prompt_logprobs: int | None = Field(None, ge=-1)
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    structured_outputs: dict[str, Any] | None = Field(None, description="vllm.StructuredOutputsParams: json, regex, …")
    thinking_token_budget: int | None = Field(None, ge=0)
    extra_args: dict[str, Any] | None = Field(None, description="input of the engine's own logits processors")
    priority: int = 0
    cache_salt: str | None = Field(None, min_length=1)


class EmbedderOptions(Options):
    """Which embedder, and how it runs."""

    model: str = Field("sentence-transformers/all-MiniLM-L6-v2", description="hub id, local folder or model wheel")
    device: str = Field("cpu", description="cpu or cuda; cpu leaves the GPU's memory to the engine")
    batch_size: int = Field(32, ge=1, description="texts in one forward pass")
