"""What vLLM's own gauges say of the session's engine. They are set after each of its steps, the one of an abort too."""

import os
import time
from collections.abc import Callable

import prometheus_client

from llm.engine import Engine

IDLE = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


def gauge(name: str) -> float:
    """The sum of one of vLLM's gauges or counters."""
    families = prometheus_client.REGISTRY.collect()
    return sum(sample.value for family in families for sample in family.samples if sample.name == f"vllm:{name}")


def in_use(engine: Engine) -> dict[str, float]:
    """What is not nought: unfinished requests by our count; by vLLM's, running and waiting ones and KV blocks."""
    counts = {"unfinished": float(engine.unfinished)} | {name: gauge(name) for name in IDLE}
    return {name: count for name, count in counts.items() if count}


def busy(engine: Engine) -> bool:
    """Whether a request has begun to fill its KV blocks."""
    return bool(engine.unfinished and gauge("kv_cache_usage_perc"))


def wait_until(condition: Callable[[], object], *, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_until_idle(engine: Engine, *, seconds: float = 1.0) -> float:
    """How many seconds it took until nothing ran, waited or held KV blocks; fails if it took more than so many.

    They are longer where other work shares the cores: a step of the engine, which cannot be broken off, is then too.
    """
    others = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    begun, limit = time.monotonic(), seconds * max(1.0, others**2)
    while left := in_use(engine):
        assert time.monotonic() < begun + limit, left
        time.sleep(0.01)
    return time.monotonic() - begun
