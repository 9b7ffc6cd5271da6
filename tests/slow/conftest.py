"""The commands as a user runs them: processes of their own, the real models, the sample documents."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.slow.vllm_server import VLLMServer, serving_vllm

ROOT = Path(__file__).parents[2]
GROUNDWELL = [sys.executable, "-m", "rag"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder in which the sample documents have been ingested."""
    home = tmp_path_factory.mktemp("home")
    command = [*GROUNDWELL, "ingest", str(ROOT / "data" / "sample")]
    subprocess.run(command, cwd=home, env=environment(), check=True, timeout=200)
    return home


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


@dataclass
class RunningService:
    """A `groundwell serve` in a process group of its own."""

    process: "subprocess.Popen[str]"
    address: str

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def running(home: Path) -> Iterator[RunningService]:
    """Start the service; whatever is left of it at the end is killed."""
    command = [*GROUNDWELL, "serve", "--port", "0"]
    process = subprocess.Popen(
        command, cwd=home, env=environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout
        address = next(line.split()[-1] for line in process.stdout if "http://" in line)
        yield RunningService(process, address)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="module")
def service(home: Path) -> Iterator[RunningService]:
    """A service for the tests of a module that do not stop it; no longer, for it holds an engine and most of a core."""
    with running(home) as service:
        yield service


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    """vLLM's own server, started once."""
    with serving_vllm(tmp_path_factory.mktemp("vllm")) as server:
        yield server
