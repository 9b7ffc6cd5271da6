"""The cause of a failed start, found in what vLLM's processes write."""

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from llm.starting.engine_log import TOLD
from llm.starting.start_failure import explained, memory_shortage, plainly, root_cause

REPORT = RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")
ENGINE = "(EngineCore pid=41) ERROR 11-30 07:51:51 [core.py:1510] "
WORKER = "(Worker_TP1 pid=42) ERROR 11-30 07:51:50 [multiproc_executor.py:880] "
BARE = ""


def traceback(said: str, *, by: str = ENGINE) -> list[str]:
    """A traceback as one of vLLM's processes logs it, or prints it when it ends."""
    frames = ['  File "core.py", line 7, in run', "    start()", "    ^^^^^^^"]
    return [by + line for line in ("Traceback (most recent call last):", *frames, *said.split("\n"))]


def failure(said: str, *, by: str = ENGINE) -> list[str]:
    """All that is written when the engine's process fails: its log, then Python's own traceback."""
    printed = ["Process EngineCore:", *traceback(said, by=BARE)]
    return [f"{by}EngineCore failed to start.", *traceback(said, by=by), *printed]


def test_the_exception_of_the_engines_process_is_the_cause() -> None:
    assert root_cause(failure("ValueError: no 模型 here")) == "ValueError: no 模型 here"


def test_the_exception_of_a_worker_is_the_cause_of_its_engines() -> None:
    second_hand = "Exception: WorkerProc initialization failed due to an exception in a background process. "
    lines = [*failure(second_hand + "See stack trace for root cause."), *traceback("KeyError: 'layers.1'", by=WORKER)]
    assert root_cause(lines) == "KeyError: 'layers.1'"


def test_a_message_of_several_lines_is_one_sentence() -> None:
    assert root_cause(failure("RuntimeError: first\n    second\nthird")) == "RuntimeError: first second third"


def test_what_an_exception_was_raised_from_is_told_too() -> None:
    chained = "The above exception was the direct cause of the following exception:"
    lines = [*traceback("OSError: disk"), ENGINE, ENGINE + chained, ENGINE, *traceback("RuntimeError: no weights")]
    assert root_cause(lines) == "RuntimeError: no weights (from OSError: disk)"


def test_a_record_that_follows_is_no_part_of_the_exception() -> None:
    lines = [*traceback("ValueError: wrong"), ENGINE.replace("1510", "77") + "and more", "(EngineCore pid=41) printed"]
    assert root_cause(lines) == "ValueError: wrong"


def test_a_crash_speaks_for_itself() -> None:
    lines = ["loading", "terminate called after throwing an instance of 'x::Error'", "  what():  no such node"]
    assert root_cause(lines) == "terminate called after throwing an instance of 'x::Error' what():  no such node"


def test_what_our_code_tells_comes_first() -> None:
    assert root_cause([*failure("EOFError"), f"{TOLD}no guard"]) == "no guard"


@pytest.mark.parametrize("lines", [[], ["Loading weights", "INFO all is well"]])
def test_no_exception_is_no_cause(lines: list[str]) -> None:
    assert root_cause(lines) is None


@pytest.mark.parametrize(
    ("processes", "said"),
    [
        ("{}", "its process ended and told nothing"),
        ("{'EngineCore': 1}", "its process ended and told nothing but status 1"),
        ("{'EngineCore': -4}", "its process was ended by SIGILL"),
    ],
)
def test_a_process_that_told_nothing_is_known_by_its_end(processes: str, said: str) -> None:
    report = RuntimeError(str(REPORT).replace("{}", processes))
    assert explained(report, [], on_cpu=True) == said


def test_a_process_that_the_kernel_killed_ran_out_of_memory() -> None:
    report = RuntimeError(str(REPORT).replace("{}", "{'EngineCore': -9}"))
    assert "memory runs out: lower kv_cache_gib or max_model_len" in explained(report, ["Loading"], on_cpu=True)
    assert "lower gpu_memory_utilization or" in explained(report, ["Loading"], on_cpu=False)


def test_an_error_before_any_process_ran_explains_itself() -> None:
    assert explained(ValueError("tensor parallel size (2) must divide\n9 heads"), [], on_cpu=True) == (
        "tensor parallel size (2) must divide 9 heads"
    )


# Memory: the shapes of what vLLM 0.26 to 0.33 and torch say

LENGTH = (
    "ValueError: To serve at least one request with the model{s} max seq len (32768), (1.75 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (1.1 GiB). {estimate}Try increasing …"
)
ESTIMATE = "Based on the available memory, the estimated maximum model length is 20512. "


@pytest.mark.parametrize("plural", ["'s", "s's"])
@pytest.mark.parametrize(
    ("on_cpu", "raised"), [(True, "kv_cache_gib"), (False, "gpu_memory_utilization or tensor_parallel_size")]
)
def test_a_context_that_does_not_fit_names_both_sizes_and_the_length_that_fits(
    on_cpu: bool, raised: str, plural: str
) -> None:
    said = failure(LENGTH.format(s=plural, estimate=ESTIMATE))
    assert explained(REPORT, said, on_cpu=on_cpu) == (
        "max_model_len 32768 needs 1.75 GiB of KV cache, 1.1 GiB are available: "
        f"set max_model_len to 20512 or less, or raise {raised}"
    )


def test_a_context_that_does_not_fit_at_any_length_names_both_sizes() -> None:
    assert explained(REPORT, failure(LENGTH.format(s="'s", estimate="")), on_cpu=False) == (
        "max_model_len 32768 needs 1.75 GiB of KV cache, 1.1 GiB are available: lower max_model_len, "
        "or raise gpu_memory_utilization or tensor_parallel_size"
    )


@pytest.mark.parametrize("device", ["", " cuda:0"])
def test_a_gpu_that_others_use_names_the_share_that_is_free(device: str) -> None:
    said = (
        f"ValueError: Free memory on device{device} (39.9/79.19 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 71.27 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    )
    assert explained(REPORT, failure(said), on_cpu=False) == (
        "gpu_memory_utilization 0.9 needs 71.27 GiB, 39.9 of 79.19 GiB are free: "
        "set gpu_memory_utilization to 0.5 or less, or free what other processes hold"
    )


def test_weights_that_fill_the_gpu_name_what_to_raise() -> None:
    said = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when …"
    assert explained(REPORT, failure(said), on_cpu=False) == (
        "the model's weights leave no memory for the KV cache: "
        "raise gpu_memory_utilization or tensor_parallel_size, or take a smaller or quantised model"
    )


def test_a_gpu_that_runs_out_in_the_midst_names_its_figures() -> None:
    said = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.02 GiB. GPU 0 has a total capacity of "
        "79.19 GiB of which 512.06 MiB is free. Including non-PyTorch memory, this process has 78.6 GiB memory in use."
    )
    explanation = explained(REPORT, traceback(said, by=WORKER), on_cpu=False)
    assert explanation.startswith("the GPU's memory ran out, 1.02 GiB more were needed, 512.06 MiB of 79.19 GiB were")
    assert "lower gpu_memory_utilization, max_model_len or max_num_seqs" in explanation


def test_a_cpu_that_runs_out_names_what_was_asked_for() -> None:
    said = "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 10737418240 bytes. Error 12"
    assert "the memory ran out, 10.00 GiB more were needed: lower kv_cache_gib" in explained(
        REPORT, failure(said), on_cpu=True
    )


def test_a_kv_cache_above_the_memory_names_both() -> None:
    said = (
        "ValueError: Available memory on node 0 (8.9/10.34 GiB) on kv cache allocation is less than requested memory "
        "for kv (10000.0 GiB). Decrease --kv-cache-memory-bytes, …"
    )
    assert explained(REPORT, failure(said), on_cpu=True) == (
        "the KV cache needs 10000.0 GiB, 8.9 of 10.34 GiB are free: lower kv_cache_gib"
    )


@pytest.mark.parametrize("cause", ["MemoryError", "terminate called … 'std::bad_alloc'", "CUDA error: out of memory"])
def test_a_bare_lack_of_memory_is_one(cause: str) -> None:
    advice = memory_shortage(cause, on_cpu=True)
    assert advice and advice.startswith("the memory ran out: lower kv_cache_gib")


def test_other_causes_are_no_lack_of_memory() -> None:
    assert memory_shortage("SafetensorError: incomplete metadata, file not fully covered", on_cpu=True) is None


# Refusals of vLLM's configuration


class Configuration(BaseModel):
    dtype: int | bool = 0
    seed: int = Field(0, ge=0)
    method: str = ""

    @field_validator("method")
    @classmethod
    def _known(cls, value: str) -> str:
        raise ValueError("Unknown method: must be one of\n['awq', 'gptq']")


def test_a_pydantic_error_is_one_line_with_each_field_once() -> None:
    with pytest.raises(ValidationError) as caught:
        Configuration(dtype="float7", seed=-1, method="x")
    said = plainly(caught.value)
    assert said.count("dtype: ") == 1
    assert "seed: Input should be greater than or equal to 0" in said
    assert said.endswith("method: Unknown method: must be one of ['awq', 'gptq']")
    assert "errors.pydantic.dev" not in said


def test_an_exception_without_words_is_its_name() -> None:
    assert plainly(AssertionError()) == "AssertionError"
