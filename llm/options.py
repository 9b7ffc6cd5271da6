"""The options of the engine, of sampling and of the embedder; importing this file imports no vLLM."""

import difflib
import re
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from llm.option_names.engine_fields import as_field, engine_fields, from_text
from llm.option_names.older_engine_options import ENGINE
from llm.option_names.older_names import in_todays_names
from llm.option_names.older_sampling_options import SAMPLING, constraint


class Options(BaseModel):
    """Base of every option class: frozen, and an unknown name is an error that names the nearest known one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _name_the_nearest(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        today = cls._in_todays_names(values)
        for name in today.keys() - cls.model_fields.keys():
            cls._refuse_unknown(name)
        return today

    @classmethod
    def _in_todays_names(cls, values: dict[str, Any]) -> dict[str, Any]:
        return values

    @classmethod
    def _refuse_unknown(cls, name: str) -> None:
        refuse_unknown(name, cls.model_fields, what=cls.__name__)


def refuse_unknown(name: str, known: Any, *, what: str) -> None:
    """Raise ValueError for a name that is not in `known`, with the nearest name that is."""
    if name in known:
        return
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{what} has no option {name!r}{hint}")


class EngineOptions(Options):
    """What the engine is started with. Sizes are in tokens unless the name says otherwise.

    Any other field of `vllm.AsyncEngineArgs` is an option by its own name; vLLM's configuration checks the values
    before anything starts. Names of older versions are translated or refused with the reason: docs/options.md.
    """

    model_config = ConfigDict(extra="allow")  # vLLM's fields; `_refuse_unknown` refuses the rest

    model: str = Field("HuggingFaceTB/SmolLM2-135M-Instruct", description="hub id, local folder or model wheel")
    max_model_len: int | None = Field(
        None, description="context window in tokens (16k is 16,000, 16K 16,384); auto: what fits; None: the model's own"
    )
    dtype: str = Field("auto", description="weight type; auto: the model's own, float32 on a CPU that lacks bfloat16")
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="share of the GPU's memory (GPU only)")
    kv_cache_gib: float = Field(1.0, gt=0, description="KV cache in GiB (CPU only)")
    tensor_parallel_size: int = Field(1, ge=1, description="GPUs that share one model")
    adapters: dict[str, str] = Field(default_factory=dict, description="LoRA adapters to start with: name = folder")
    max_adapters: int | None = Field(
        None,
        ge=1,
        description="LoRA adapters loaded at a time; None: 4, or as many as `adapters` names; off without any",
    )
    max_num_seqs: int | None = Field(None, ge=1, description="requests in one batch; None: 16 on CPU, vLLM's on GPU")
    fast_start: bool = Field(False, description="fork the engine instead of spawning it (tests; CPU only)")
    restart: bool = Field(False, description="start the engine again when it dies; given up after 3 failed starts")
    tool_call_parser: str = Field("auto", description="vLLM's parser of tool calls; auto: by the chat template")
    reasoning_parser: str = Field("auto", description="vLLM's parser of reasoning; auto: by the chat template")

    @property
    def vllm(self) -> dict[str, Any]:
        """The further fields of vllm.AsyncEngineArgs that were given."""
        return dict(self.model_extra or {})

    @classmethod
    def _in_todays_names(cls, values: dict[str, Any]) -> dict[str, Any]:
        read = {name: from_text(value) if name in ENGINE else value for name, value in values.items()}
        today = in_todays_names(read, ENGINE)
        return {name: value if name in cls.model_fields else as_field(name, value) for name, value in today.items()}

    @classmethod
    def _refuse_unknown(cls, name: str) -> None:
        if engine_fields():  # without vLLM, what starts it has the last word
            refuse_unknown(name, [*cls.model_fields, *engine_fields(), *ENGINE], what=cls.__name__)

    @field_validator("max_model_len", mode="before")
    @classmethod
    def _length(cls, value: Any) -> Any:
        """vLLM's command line takes `auto` and `16k`, its Python fields take -1 and a number."""
        if not isinstance(value, str):
            return value
        if value == "auto":
            return -1
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM])", value.strip())
        return int(float(found[1]) * {"k": 1e3, "K": 2**10, "m": 1e6, "M": 2**20}[found[2]]) if found else value

    @field_validator("max_model_len")
    @classmethod
    def _at_least_one(cls, value: int | None) -> int | None:
        if value is not None and value < 1 and value != -1:
            raise ValueError("a context window has at least 1 token; auto fits it to the memory")
        return value


CONSTRAINTS: dict[str, type | tuple[type, ...]] = {
    "json": (dict, str),
    "regex": str,
    "choice": list,
    "grammar": str,
    "json_object": bool,
    "structural_tag": str,
}
CONSTRAINT_OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")

NOT_IN_BEAM_SEARCH = (
    *("top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("stop", "stop_token_ids", "min_tokens", "prompt_logprobs", "logit_bias", "allowed_token_ids", "bad_words"),
    *("structured_outputs", "thinking_token_budget", "extra_args"),
    *("skip_special_tokens", "spaces_between_special_tokens"),
)
"""Sampling options that vLLM's beam search does not carry out."""


class SamplingOptions(Options):
    """How one answer is drawn, in vLLM's names and ranges (`vllm.SamplingParams`); None leaves the model's default.

    `best_of` draws so many choices and keeps the `n` with the highest cumulative log-probability, best first;
    `use_beam_search` keeps the `n` best of `best_of` (else `n`) beams. Requests with different `cache_salt` share no
    prefix in the cache. Older names (and OpenAI's) are translated or refused with the reason: docs/options.md.
    """

    model_config = ConfigDict(strict=True)  # a temperature of "0.5" or True is a mistake of the caller

    max_tokens: int = Field(512, ge=1, lt=2**31, description="tokens of the answer at most")
    min_tokens: int | None = Field(None, ge=0, lt=2**31, description="no end of the answer before so many tokens")
    max_length: int | None = Field(None, ge=1, description="tokens of prompt and answer at most")
    n: int = Field(1, ge=1, le=128, description="choices")
    best_of: int | None = Field(None, ge=1, le=128, description="choices drawn, of which the n likeliest are kept")
    use_beam_search: bool = Field(False, description="the n best of best_of (else n) beams, not streamed")
    length_penalty: float | None = Field(None, description="of beams: above 1 favours longer ones; None: 1")
    temperature: float = Field(0.0, ge=0, le=2, description="0 takes the likeliest token; below 0.01 counts as 0.01")
    top_p: float | None = Field(
        None, gt=0, le=1, description="draw among the likeliest tokens of this total probability"
    )
    top_k: int | None = Field(None, ge=-1, lt=2**31, description="draw among so many likeliest tokens; 0 or -1: all")
    min_p: float | None = Field(None, ge=0, le=1, description="least probability, as a share of the likeliest token's")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="subtracted once a token has been written")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="subtracted each time it has been written")
    repetition_penalty: float | None = Field(None, gt=0, le=2, description="divides what stands in prompt or answer")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description="same seed, same draw; -1 or None: any")
    stop: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list, max_length=16, description="strings that end the answer, themselves left out"
    )
    stop_token_ids: list[int] | None = Field(None, description="tokens that end the answer")
    include_stop_str_in_output: bool = Field(False, description="the stop string stays in the text")
    ignore_eos: bool = Field(False, description="write on after the model's end token")
    logprobs: int | None = Field(None, ge=-1, description="likeliest tokens reported for each place; -1: all")
    prompt_logprobs: int | None = Field(None, ge=-1, description="the same for the prompt's tokens")
    skip_special_tokens: bool = Field(True, description="control tokens are left out of the text")
    spaces_between_special_tokens: bool = Field(True, description="spaces round control tokens that are shown")
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, description="added to a token's logit; 100 forces it, -100 bans it"
    )
    allowed_token_ids: list[int] | None = Field(None, description="no other tokens")
    bad_words: list[Annotated[str, Field(min_length=1)]] | None = Field(None, description="words that are not written")
    structured_outputs: dict[str, Any] | None = Field(
        None, description="one of json, regex, choice, grammar, json_object, structural_tag"
    )
    thinking_token_budget: int | None = Field(
        None, ge=-1, lt=2**31, description="tokens of reasoning at most (with reasoning_config); -1: any"
    )
    extra_args: dict[str, Any] | None = Field(None, description="input of the engine's own logits_processors")
    priority: int = Field(0, ge=-(2**31), lt=2**31, description="lower goes first")
    cache_salt: str | None = Field(None, min_length=1, description="shares cached prefixes with the same salt only")

    @classmethod
    def _in_todays_names(cls, values: dict[str, Any]) -> dict[str, Any]:
        return in_todays_names(values, SAMPLING)

    @classmethod
    def _refuse_unknown(cls, name: str) -> None:
        refuse_unknown(name, [*cls.model_fields, *SAMPLING], what=cls.__name__)

    @field_validator("logprobs", mode="before")
    @classmethod
    def _as_openai_has_it(cls, value: Any) -> Any:
        return value if not isinstance(value, bool) else 0 if value else None

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else list(value or ()) if isinstance(value, tuple | None) else value

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _keys_of_json(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {int(key) if isinstance(key, str) and key.isdecimal() else key: bias for key, bias in value.items()}

    @field_validator("structured_outputs", mode="before")
    @classmethod
    def _one_constraint(cls, value: Any) -> Any:
        given = constraint(value)
        if not isinstance(given, dict):
            return given
        for key in given:
            refuse_unknown(key, [*CONSTRAINTS, *CONSTRAINT_OPTIONS], what="structured_outputs")
        named = [key for key in CONSTRAINTS if given.get(key) is not None]
        if len(named) != 1:
            raise ValueError(f"one of {', '.join(CONSTRAINTS)} is needed, not {', '.join(named) or 'none'}")
        value = given[named[0]]
        if not isinstance(value, CONSTRAINTS[named[0]]) or not all(
            isinstance(one, str) for one in given.get("choice") or ()
        ):
            raise ValueError(f"{named[0]} cannot be {value!r:.100}")
        return given

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if self.min_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens {self.min_tokens} is more than max_tokens {self.max_tokens}")
        if self.best_of is not None and self.best_of < self.n:
            raise ValueError(
                f"best_of {self.best_of} is less than n {self.n}: it draws the choices that n are taken from"
            )
        if self.use_beam_search:
            self._fit_beam_search()
        elif self.length_penalty not in (None, 1):
            raise ValueError(f"length_penalty {self.length_penalty} is beam search's: set use_beam_search too")
        elif self.temperature == 0 and (width := max(self.n, self.best_of or 1)) > 1:
            name = "n" if self.n == width else "best_of"
            raise ValueError(f"{name} {width} at temperature 0 gives one answer {width} times: set temperature above 0")
        return self

    def _fit_beam_search(self) -> None:
        if (self.best_of or self.n) == 1:
            raise ValueError(
                "use_beam_search with one beam takes the likeliest token: set best_of to the number of beams"
            )
        for name in NOT_IN_BEAM_SEARCH:
            if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                raise ValueError(f"{name} is not carried out by vLLM's beam search: leave it or use_beam_search out")


class EmbedderOptions(Options):
    """Which embedder, and how it runs."""

    model: str = Field("sentence-transformers/all-MiniLM-L6-v2", description="hub id, local folder or model wheel")
    device: str = Field("cpu", description="cpu or cuda; cpu leaves the GPU's memory to the engine")
    batch_tokens: int = Field(4096, ge=1, description="tokens in one forward pass at most, padding included")


class RerankerOptions(Options):
    """Which reranker, and how it runs."""

    model: str = Field("cross-encoder/mmarco-mMiniLMv2-L12-H384-v1", description="hub id or local folder")
    device: str = Field("cpu", description="cpu or cuda; cpu leaves the GPU's memory to the engine")
    batch_tokens: int = Field(4096, ge=1, description="tokens in one forward pass at most, padding included")
