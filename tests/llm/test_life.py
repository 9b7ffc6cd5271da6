"""Starting, breaking off, dying and starting again, with a vLLM that is scripted."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llm.models import ModelNotFound
from llm.options import EngineOptions
from llm.protocol import EngineStartFailed, EngineStopping, EngineUnavailable
from llm.starting import life, start
from llm.starting.life import STARTS, Life
from tests.llm.conftest import until

ROOT = Path(__file__).parents[2]


class ScriptedLLM:
    """As much of AsyncLLM as its life needs; `die` ends its output handler, as vLLM's does."""

    def __init__(self) -> None:
        self.output_handler: asyncio.Task[None] | None = None
        self.engine_core = SimpleNamespace(utility_results={})
        self._dead = asyncio.Event()

    def _run_output_handler(self) -> None:
        self.output_handler = asyncio.create_task(self._handle())

    async def _handle(self) -> None:
        await self._dead.wait()

    def die(self) -> None:
        self._dead.set()


class ScriptedStarted:
    """A start's result that counts its stops."""

    def __init__(self, *lines: str) -> None:
        self.llm, self.log, self.stops = ScriptedLLM(), SimpleNamespace(lines=lines), 0

    def stop(self) -> None:
        self.stops += 1


StartAgain = Callable[..., None]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> StartAgain:
    """Sets what the next starts give: a result to return, or an exception to raise."""
    monkeypatch.setattr(life, "PAUSE", 0)

    def script(*outcomes: Any) -> None:
        remaining = iter(outcomes)

        async def scripted(options: EngineOptions) -> Any:
            outcome = next(remaining)
            if isinstance(outcome, Exception):
                raise outcome
            return await outcome if isinstance(outcome, Awaitable) else outcome

        monkeypatch.setattr(life, "start", scripted)

    return script


def living(started: ScriptedStarted, **options: Any) -> Life:
    return Life(started, EngineOptions(**options))  # type: ignore[arg-type]


async def test_a_death_is_told_with_its_cause_and_everything_is_stopped() -> None:
    started = ScriptedStarted("Traceback (most recent call last):", "InvalidCxxCompiler: no g++")
    engine = living(started)
    engine.check()
    started.llm.die()
    assert str(await engine.died()) == (
        "the vLLM engine has died (InvalidCxxCompiler: no g++): start the engine anew, or set restart"
    )
    with pytest.raises(EngineUnavailable, match="InvalidCxxCompiler"):
        engine.check()
    assert started.stops == 1
    await engine.stop()


async def test_a_call_that_vllm_forgets_is_ended_by_the_death(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "vllm_names", SimpleNamespace(EngineDeadError=ConnectionError))
    started = ScriptedStarted()
    engine = living(started)
    forgotten = started.llm.engine_core.utility_results[1] = asyncio.get_running_loop().create_future()
    answered = started.llm.engine_core.utility_results[2] = asyncio.get_running_loop().create_future()
    answered.set_result("yes")
    started.llm.die()
    await engine.died()
    with pytest.raises(ConnectionError):
        await forgotten
    assert answered.result() == "yes"


async def test_an_end_is_no_death() -> None:
    started = ScriptedStarted()
    engine = living(started, restart=True)
    waiting = asyncio.create_task(engine.died())
    await until(lambda: started.llm.output_handler)
    await engine.stop()
    with pytest.raises(EngineStopping):
        await waiting
    assert engine.trouble is None
    assert started.stops == 1


async def test_a_dead_engine_is_started_again_and_refuses_until_then(starts: StartAgain) -> None:
    ready, second = asyncio.Event(), ScriptedStarted()

    async def slowly() -> ScriptedStarted:
        await ready.wait()
        return second

    starts(slowly())
    first = ScriptedStarted()
    engine = living(first, restart=True)
    happened = []

    async def restarted() -> None:
        happened.append(engine.trouble)  # still refusing

    engine.restarted = restarted
    first.llm.die()
    await until(lambda: engine.trouble)
    with pytest.raises(EngineUnavailable, match="it is being started again"):
        engine.check()
    ready.set()
    await until(lambda: not engine.trouble)
    assert engine.started is second
    assert (first.stops, second.stops) == (1, 0)
    assert len(happened) == 1 and "being started again" in str(happened[0])
    await engine.stop()
    assert second.stops == 1


async def test_it_can_die_and_be_started_again_any_number_of_times(starts: StartAgain) -> None:
    all_of_them = [ScriptedStarted() for _ in range(STARTS + 3)]
    starts(*all_of_them[1:])
    engine = living(all_of_them[0], restart=True)
    for before, after in pairwise(all_of_them):
        before.llm.die()
        await until(lambda after=after: engine.started is after and not engine.trouble)
    await engine.stop()


@pytest.mark.parametrize("failure", [EngineStartFailed("no memory"), ModelNotFound("no memory")])
async def test_a_restart_is_given_up_after_three_failed_starts(starts: StartAgain, failure: Exception) -> None:
    starts(*[failure] * STARTS)
    started = ScriptedStarted()
    engine = living(started, restart=True)
    started.llm.die()
    assert str(await engine.died()) == "the vLLM engine has died and does not start again: no memory"
    with pytest.raises(EngineUnavailable, match="does not start again: no memory"):
        engine.check()
    await engine.stop()


async def test_an_engine_that_dies_while_it_is_made_ready_again_counts_as_failed(starts: StartAgain) -> None:
    again = [ScriptedStarted() for _ in range(STARTS)]
    starts(*again)
    first = ScriptedStarted()
    engine = living(first, restart=True)

    async def restarted() -> None:
        raise EngineUnavailable("an adapter killed it")

    engine.restarted = restarted
    first.llm.die()
    assert "does not start again: an adapter killed it" in str(await engine.died())
    assert [started.stops for started in again] == [1] * STARTS
    await engine.stop()


async def test_a_failed_start_is_tried_again(starts: StartAgain) -> None:
    second = ScriptedStarted()
    starts(EngineStartFailed("memory not free yet"), EngineStartFailed("memory not free yet"), second)
    first = ScriptedStarted()
    engine = living(first, restart=True)
    first.llm.die()
    await until(lambda: engine.started is second and not engine.trouble)
    await engine.stop()


async def test_an_end_breaks_a_restart_off(starts: StartAgain) -> None:
    begun, broken_off = asyncio.Event(), asyncio.Event()

    async def for_ever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            broken_off.set()

    starts(for_ever())
    started = ScriptedStarted()
    engine = living(started, restart=True)
    started.llm.die()
    await begun.wait()
    await engine.stop()
    assert broken_off.is_set()


# The start


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Keeps a start in its first step until it is set."""
    held = threading.Event()

    def resolve(model: str) -> str:
        held.wait(10)
        raise ModelNotFound("too late")

    monkeypatch.setattr(start, "resolve", resolve)
    return held


async def test_a_start_that_is_cancelled_raises_at_once(held: threading.Event) -> None:
    task = asyncio.create_task(start.start(EngineOptions()))
    await until(lambda: any(thread.name == "groundwell-start" for thread in threading.enumerate()))
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 1
    held.set()
    await until(lambda: all(thread.name != "groundwell-start" for thread in threading.enumerate()))


async def test_a_start_that_became_ready_when_it_was_broken_off_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    started = ScriptedStarted()
    go_on = threading.Event()

    def ready(self: Any) -> ScriptedStarted:
        self._processes_may_run.set()
        go_on.wait(10)
        return started

    monkeypatch.setattr(start._Start, "_started", ready)
    task = asyncio.create_task(start.start(EngineOptions()))
    await until(lambda: any(thread.name == "groundwell-start" for thread in threading.enumerate()))
    task.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: started.stops == 1)


async def test_a_failed_start_raises_what_it_raised(held: threading.Event) -> None:
    held.set()
    with pytest.raises(ModelNotFound, match="too late"):
        await start.start(EngineOptions())


@pytest.mark.parametrize("fast_start", [False, True])
def test_a_program_from_standard_input_is_told_what_to_do(fast_start: bool) -> None:
    """A spawned process would look for a file `<stdin>`."""
    program = (
        "from llm.options import EngineOptions\nfrom llm.starting.start import check_main_module\n"
        f"check_main_module(EngineOptions(fast_start={fast_start}))\n"
    )
    done = subprocess.run([sys.executable, "-"], input=program, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode == 0) is fast_start
    assert fast_start or "cannot import the main program <stdin>: save it, or set fast_start" in done.stderr


def test_a_program_from_the_command_line_can_start_an_engine() -> None:
    program = "import llm.options, llm.starting.start as s; s.check_main_module(llm.options.EngineOptions())"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
