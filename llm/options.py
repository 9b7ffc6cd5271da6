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
    vllm: dict[str, Any] = Field(default_factory=dict, description="further fields of vllm.AsyncEngineArgs")


class SamplingOptions(Options):
    """How one answer is drawn, in vLLM's names and ranges (`vllm.SamplingParams`); None leaves the model's default."""

    model_config = ConfigDict(strict=True)  # a temperature of "0.5" or True is a mistake of the caller

    max_tokens: int = Field(512, ge=1, lt=2**31, description="tokens of the answer at most")
    temperature: float = Field(0.0, ge=0, le=2, description="0 takes the likeliest token")
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=2)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: list[str] = Field(default_factory=list, max_length=16)
    ignore_eos: bool = False


class EmbedderOptions(Options):
    """Which embedder, and how it runs."""

    model: str = Field("sentence-transformers/all-MiniLM-L6-v2", description="hub id, local folder or model wheel")
    device: str = Field("cpu", description="cpu or cuda; cpu leaves the GPU's memory to the engine")
    batch_size: int = Field(32, ge=1, description="texts in one forward pass")
