"""The engine's processes, seen from outside: none outlives the process that started it, however that one ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.model.gauges import wait_until
from tests.slow.conftest import GROUNDWELL, environment
from tests.slow.gone import wait_until_gone
from tests.slow.test_engine_life import engine_processes, run_folders

pytestmark = pytest.mark.timeout(300)

SCRIPT = """
import asyncio

from llm.engine import Engine
from llm.options import EngineOptions, SamplingOptions


async def main():
    options = EngineOptions(max_model_len=512, kv_cache_gib=0.2, fast_start=FAST)
    async with Engine.start(options) as engine:
        while True:
            generation = await engine.submit([1, 2, 3], SamplingOptions(max_tokens=400, ignore_eos=True))
            async for delta in generation:
                print("token", flush=True)

"""
PLAIN = "asyncio.run(main())\n"
GUARDED = 'if __name__ == "__main__":\n    asyncio.run(main())\n'


@contextmanager
def script(tmp_path: Path, ending: str, *, fast: bool) -> Iterator["subprocess.Popen[str]"]:
    """A script that streams for ever; what is left of it at the end is killed."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT.replace("FAST", str(fast)) + ending)
    with started([sys.executable, str(file)], tmp_path) as process:
        yield process


@contextmanager
def started(command: list[str], folder: Path) -> Iterator["subprocess.Popen[str]"]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=folder, env=environment(), start_new_session=True, **streams)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def first_processes(parent: "subprocess.Popen[str]") -> list[psutil.Process]:
    """The engine's processes as soon as there are any (vLLM runs small programs before)."""

    def engines() -> list[psutil.Process]:
        return [child for child in engine_processes(parent.pid) if is_engine(child)]

    wait_until(lambda: parent.poll() is not None or engines(), seconds=120)
    return engines()


def is_engine(process: psutil.Process) -> bool:
    try:
        return "--multiprocessing-fork" in process.cmdline()
    except psutil.Error:
        return False  # gone


@pytest.mark.parametrize(("fast", "ending"), [(False, GUARDED), (True, PLAIN)], ids=["spawned", "forked"])
def test_an_engine_ends_with_the_process_that_was_killed(tmp_path: Path, fast: bool, ending: str) -> None:
    before = run_folders()
    with script(tmp_path, ending, fast=fast) as parent:
        assert parent.stdout
        assert any(line == "token\n" for line in parent.stdout)
        children = engine_processes(parent.pid)
        assert [child.name() for child in children] == ["VLLM::EngineCore"]
        parent.kill()
        wait_until_gone(children, seconds=5)
    assert run_folders() == before


def test_an_engine_that_was_just_starting_ends_with_its_parent_too(tmp_path: Path) -> None:
    with script(tmp_path, GUARDED, fast=False) as parent:
        children = first_processes(parent)
        parent.kill()
        wait_until_gone(children, seconds=60)  # it imports vLLM first


def test_a_script_that_starts_an_engine_while_it_is_imported_is_told_what_to_do(tmp_path: Path) -> None:
    with script(tmp_path, PLAIN, fast=False) as parent:
        output, _ = parent.communicate(timeout=240)
    assert parent.returncode == 1
    said = next(line for line in output.splitlines() if "EngineStartFailed: vLLM did not start with" in line)
    assert said.endswith("put the start under `if __name__ == '__main__':`, or set fast_start")


def test_a_service_whose_engine_does_not_start_ends_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROUNDWELL_ENGINE__KV_CACHE_GIB", "0.05")
    monkeypatch.setenv("GROUNDWELL_ENGINE__MAX_MODEL_LEN", "8192")
    with started([*GROUNDWELL, "serve", "--port", "0"], tmp_path) as service:
        children = first_processes(service)
        output, _ = service.communicate(timeout=240)
    assert service.returncode == 3
    assert "0.05 GiB are available: set max_model_len to" in output.strip().splitlines()[-1]
    assert "Traceback" not in output
    wait_until_gone(children, seconds=5)


@pytest.mark.parametrize("to_the_group", [False, True], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_breaks_a_start_off(tmp_path: Path, to_the_group: bool) -> None:
    before = run_folders()
    with started([*GROUNDWELL, "serve", "--port", "0"], tmp_path) as service:
        children = first_processes(service)
        began = time.monotonic()
        if to_the_group:
            os.killpg(service.pid, signal.SIGINT)
        else:
            service.terminate()
        output, _ = service.communicate(timeout=60)
        assert time.monotonic() - began < 5
    assert service.returncode == 0
    assert output.strip().splitlines()[-1] == "groundwell serve: stopped before it had started"
    assert "Traceback" not in output
    wait_until_gone(children, seconds=2)
    assert run_folders() == before
