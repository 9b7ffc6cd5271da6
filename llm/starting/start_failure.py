"""Why vLLM did not start, or died: the cause in what it wrote, with the figures and the option to change."""

import math
import re
import signal
from collections.abc import Iterator, Sequence
from itertools import dropwhile, takewhile

from llm.starting.engine_log import TOLD

PREFIX = re.compile(r"(\([\w ]+ pid=\d+\)) (?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d (\[[^\]]*\]) ?)?")
"""How vLLM begins each line of a log record: the process, then level, time and place."""
TRACEBACK = "Traceback (most recent call last):\n"
CHAINED = "\nThe above exception was the direct cause of the following exception:\n"
SECONDHAND = re.compile(
    r"see (root cause above|stack trace)|initialization failed|died unexpectedly|KeyboardInterrupt|SystemExit",
    re.IGNORECASE,
)
"""Exceptions that only say that another process has failed."""
CRASH = re.compile(r"terminate called|what\(\):|Fatal Python error|Segmentation fault|\bFATAL\b")

ABOVE_THE_MODELS = re.compile(r"(max_model_len .*)\. To allow overriding this maximum, set the env var .*", re.DOTALL)
"""vLLM then tells how to have a window above the model's own, which gives nonsense or crashes."""

SILENT = "its process ended and told nothing"

ON_CPU = {"room": "kv_cache_gib", "share": "kv_cache_gib"}
ON_GPU = {"room": "gpu_memory_utilization or tensor_parallel_size", "share": "gpu_memory_utilization"}
SHORTAGES = {
    "max seq len ({length})…{needed} KV cache is needed…KV cache memory ({free})…model length is {fits}.": (
        "max_model_len {length} needs {needed} of KV cache, {free} are available: set max_model_len to {fits} or less, "
        "or raise {room}"
    ),
    "max seq len ({length})…{needed} KV cache is needed…KV cache memory ({free})": (
        "max_model_len {length} needs {needed} of KV cache, {free} are available: lower max_model_len, or raise {room}"
    ),
    "Available memory on node…({free}/{all})…less than requested memory for kv ({needed}": (
        "the KV cache needs {needed}, {free} of {all} are free: lower kv_cache_gib"
    ),
    "Free memory on device…({free}/{all})…less than desired GPU memory utilization ({utilization}, {needed})": (
        "gpu_memory_utilization {utilization} needs {needed}, {free} of {all} are free: "
        "set gpu_memory_utilization to {fitting} or less, or free what other processes hold"
    ),
    "No available memory for the cache blocks": (
        "the model's weights leave no memory for the KV cache: raise {room}, or take a smaller or quantised model"
    ),
    "Cannot auto-fit max_model_len": (
        "the model's weights leave no memory for the KV cache: raise {room}, or take a smaller or quantised model"
    ),
    "out of memory. Tried to allocate {needed}.…capacity of {all} of which {free} is free": (
        "the GPU's memory ran out, {needed} more were needed, {free} of {all} were free: lower gpu_memory_utilization, "
        "max_model_len or max_num_seqs, raise tensor_parallel_size, or take a smaller or quantised model"
    ),
    "can't allocate memory: you tried to allocate {bytes} bytes": (
        "the memory ran out, {gib} GiB more were needed: lower {share} or max_model_len, or take a smaller model"
    ),
    "out of memory": "the memory ran out: lower {share} or max_model_len, or take a smaller or quantised model",
    "MemoryError": "the memory ran out: lower {share} or max_model_len, or take a smaller or quantised model",
    "bad_alloc": "the memory ran out: lower {share} or max_model_len, or take a smaller or quantised model",
    "ended by SIGKILL": (
        "its process was killed, as the kernel does when the memory runs out: "
        "lower {share} or max_model_len, or take a smaller model"
    ),
}
"""What vLLM 0.26 to 0.33, torch and we say when memory lacks, and the advice; … stands for anything."""


def explained(error: Exception, lines: Sequence[str], *, on_cpu: bool) -> str:
    """Why the start failed with `error`, after vLLM's processes had written `lines`."""
    cause = root_cause(lines) or _end_of_process(str(error)) or plainly(error)
    return memory_shortage(cause, on_cpu=on_cpu) or cause


def _end_of_process(error: str) -> str | None:
    """For vLLM's own report that a process has ended, which counts on its output, that it has told nothing."""
    if not SECONDHAND.search(error):
        return None
    status = re.search(r"'\w+': (-?\d+)", error)
    if not status:  # vLLM looked before the kernel had it
        return SILENT
    code = int(status[1])
    return f"its process was ended by {signal.Signals(-code).name}" if code < 0 else f"{SILENT} but status {code}"


def memory_shortage(cause: str, *, on_cpu: bool) -> str | None:
    """The sentence for a lack of memory, with the figures and the options of ours that change them; None for others."""
    for template, sentence in SHORTAGES.items():
        if found := re.search(_pattern(template), cause, re.DOTALL):
            figures = found.groupdict()
            if "utilization" in figures:
                free, all_ = (float(figures[name].split()[0]) for name in ("free", "all"))
                figures["fitting"] = str(math.floor(100 * free / all_) / 100)
            if "bytes" in figures:
                figures["gib"] = f"{int(figures['bytes']) / 2**30:.2f}"
            return sentence.format(**figures, **(ON_CPU if on_cpu else ON_GPU))
    return None


def _pattern(template: str) -> str:
    escaped = re.escape(template).replace("…", ".*?")
    return re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\d+(?:\\.\\d+)?(?: [KMGT]iB)?)", escaped)


def plainly(error: Exception) -> str:
    """An exception in one line; of a pydantic error each field's first complaint, without addresses and inputs."""
    if not hasattr(error, "errors"):
        return _one_line(str(error)) or type(error).__name__
    complaints: dict[str, str] = {}
    for found in error.errors():
        message = _one_line(found["msg"].removeprefix("Value error, "))
        if found["type"] == "literal_error":
            message += f", not {found['input']!r}"
        complaints.setdefault(str(found["loc"][0]) if found["loc"] else "", message)
    return "; ".join(f"{field}: {message}" if field else message for field, message in complaints.items())


def _one_line(text: str) -> str:
    return " ".join(ABOVE_THE_MODELS.sub(r"\1: set it to that or less, or auto", text).split())


def root_cause(lines: Sequence[str]) -> str | None:
    """The first exception that vLLM's processes wrote and that is not about another's, else a crash's own words."""
    if ours := [line.removeprefix(TOLD) for line in lines if line.startswith(TOLD)]:
        return ours[0]
    told = [error for record in _records(lines) for error in _exceptions(record)]
    crash = [line.strip() for line in lines if CRASH.search(line)]
    return next((error for error in told if not SECONDHAND.search(error)), None) or " ".join(crash[:2]) or None


def _records(lines: Sequence[str]) -> list[str]:
    """The text of each log record, and of what is none, without the prefixes: processes write at the same time."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        prefix = PREFIX.match(line)
        process, place = (prefix[1], prefix[2] or "") if prefix else ("", "")
        found.setdefault((process, place), []).append(line[prefix.end() :] if prefix else line)
    return ["\n".join(record) for record in found.values()]


def _exceptions(record: str) -> Iterator[str]:
    """What its tracebacks end in, in order; with `raise … from`, the last of a chain and in brackets the first."""
    cause = None
    for traceback in record.split(TRACEBACK)[1:]:
        after_the_frames = dropwhile(lambda line: line.startswith(" "), traceback.splitlines())
        message = takewhile(lambda line: line.strip() and not line.startswith("Process "), after_the_frames)
        told = " ".join(line.strip() for line in message)
        if CHAINED in traceback:
            cause = cause or told
            continue
        yield f"{told} (from {cause})" if cause else told
        cause = None
