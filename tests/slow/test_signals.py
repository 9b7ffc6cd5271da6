"""Stopping the service while it streams."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.model.test_service import events
from tests.slow.conftest import RunningService, running
from tests.slow.gone import wait_until_gone

# The small profile streams in no other mode.
LONG = {
    "question": "Tell me all about the Terrano 3.",
    "max_tokens": 2000,
    "grounding": "open",
}
ASK = "v1/knowledge-bases/default/ask"


def terminate(service: RunningService) -> None:
    service.process.send_signal(signal.SIGTERM)


def press_ctrl_c(service: RunningService) -> None:
    """A terminal sends SIGINT to the whole group, vLLM's process included."""
    os.killpg(service.process.pid, signal.SIGINT)


@pytest.mark.parametrize("stop", [terminate, press_ctrl_c])
def test_a_signal_ends_streams_with_an_error_event_and_leaves_no_process(
    home: Path, stop: Callable[[RunningService], None]
) -> None:
    with running(home) as service:
        children = service.children()
        assert children
        with httpx.stream("POST", service.address + ASK, json=LONG, timeout=60, trust_env=False) as response:
            stream = events(response)
            while next(stream)[0] != "token":
                pass
            stop(service)
            name, data = list(stream)[-1]
        assert name == "error"
        assert data["error"]["code"] == "service_stopping"
        assert service.process.wait(20) == 0
        wait_until_gone(children, seconds=5)


def test_an_engine_that_dies_ends_the_stream_with_an_error_event_and_is_not_ready(home: Path) -> None:
    with running(home) as service:
        engine = next(child for child in service.children() if "VLLM" in child.name())
        with httpx.stream("POST", service.address + ASK, json=LONG, timeout=60, trust_env=False) as response:
            stream = events(response)
            while next(stream)[0] != "token":
                pass
            engine.kill()
            name, data = list(stream)[-1]
        assert name == "error"
        assert data["error"]["code"] == "engine_unavailable"
        assert httpx.get(service.address + "health/ready", trust_env=False).status_code == 503
        again = httpx.post(service.address + ASK, json=LONG, timeout=60, trust_env=False)
        assert (again.status_code, again.json()["error"]["code"]) == (503, "engine_unavailable")
        terminate(service)
        assert service.process.wait(20) == 0
