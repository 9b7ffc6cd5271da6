"""The life of the real engine: its start and what breaks it off, its death, its restart, its end."""

import asyncio
import gc
import shutil
import tempfile
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from llm.chat import ChatVLLM
from llm.engine import Engine
from llm.models import resolve
from llm.options import EngineOptions, SamplingOptions
from llm.protocol import EngineStartFailed, EngineStopping, EngineUnavailable, Generation
from llm.starting.run_folder import NAME
from tests.adapters import write_adapter
from tests.server import until

SMALL: dict[str, Any] = {"max_model_len": 512, "kv_cache_gib": 0.2, "max_num_seqs": 1, "fast_start": True}
LONG = SamplingOptions(max_tokens=400, ignore_eos=True)

pytestmark = pytest.mark.filterwarnings("default")  # vLLM and torch warn of each other


def engine_processes(pid: int | None = None) -> list[psutil.Process]:
    """All processes below this one (or `pid`) but multiprocessing's own tracker."""
    return [child for child in psutil.Process(pid).children(recursive=True) if not is_tracker(child)]


def is_tracker(process: psutil.Process) -> bool:
    try:
        return "resource_tracker" in " ".join(process.cmdline())
    except psutil.Error:
        return True  # gone


def run_folders() -> list[Path]:
    return [path for path in Path(tempfile.gettempdir()).iterdir() if NAME.fullmatch(path.name)]


async def ask(engine: Engine, text: str = "What is the capital of France?") -> str:
    return str((await ChatVLLM(engine=engine, max_tokens=8).ainvoke(text)).content)


@asynccontextmanager
async def streaming(engine: Engine) -> AsyncIterator[Generation]:
    """A long answer that has begun."""
    generation = await engine.submit([1, 2, 3], LONG)
    await anext(aiter(generation))
    yield generation
    await generation.aclose()


async def read(generation: Generation) -> EngineUnavailable:
    """The exception that the answer ends in; asked again, it is over."""
    with pytest.raises(EngineUnavailable) as caught:
        async for _ in generation:
            pass
    assert [delta async for delta in generation] == []
    return caught.value


async def test_a_start_can_be_broken_off_and_another_one_answers_a_notebook() -> None:
    """One engine after another in this process; this loop is not the engine's, as in a notebook's cell."""
    starting = asyncio.create_task(Engine.start(EngineOptions(**SMALL)).__aenter__())
    await until(engine_processes, seconds=60)
    began = time.monotonic()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert time.monotonic() - began < 2
    await until(lambda: not engine_processes(), seconds=2)

    before = run_folders()
    with Engine.start_in_thread(EngineOptions(**SMALL)) as engine:
        (folder,) = set(run_folders()) - set(before)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert [path for path in folder.iterdir() if path.is_socket()]
        chat = ChatVLLM(engine=engine, max_tokens=8)
        assert "Paris" in str(chat.invoke("What is the capital of France?").content)
        assert "Paris" in str((await chat.ainvoke("What is the capital of France?")).content)
        assert len(engine_processes()) == 1
    assert not engine_processes()
    assert not folder.exists()
    with pytest.raises(EngineStopping):
        await chat.ainvoke("Still there?")


async def test_an_engine_that_is_stopped_leaves_no_memory_behind_and_the_next_one_answers() -> None:
    for _ in range(2):
        async with Engine.start(EngineOptions(**SMALL)) as engine:
            assert "Paris" in await ask(engine)
            of_vllm = weakref.ref(engine._llm)
        assert not engine_processes()
        del engine
        gc.collect()
        assert of_vllm() is None


@pytest.mark.timeout(120)
async def test_a_forked_engine_starts_where_a_client_of_chromas_was_left_behind(tmp_path: Path) -> None:
    """The client's threads are not in the fork: collected there, it would wait for them for ever."""
    import chromadb
    from chromadb.api.shared_system_client import SharedSystemClient

    client: Any = chromadb.PersistentClient(str(tmp_path))
    client.create_collection("left").upsert(ids=["1"], embeddings=[[1.0, 2.0]])
    left: list[Any] = [client]
    left.append(left)
    SharedSystemClient.clear_system_cache()
    del client, left
    async with Engine.start(EngineOptions(**SMALL)) as engine:
        assert "Paris" in await ask(engine)


async def test_everybody_who_waits_for_an_engine_that_dies_gets_one_exception(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ending = "its process ended and told nothing, as when it is killed"
    async with Engine.start(EngineOptions(**SMALL)) as engine, streaming(engine) as running:
        queued = await engine.submit([4, 5, 6], LONG)
        (process,) = engine_processes()
        process.suspend()
        forgotten = asyncio.create_task(engine._llm.is_sleeping())  # a call that vLLM itself would never end
        bridged = asyncio.create_task(asyncio.to_thread(in_a_loop_of_its_own, engine))
        dead = asyncio.create_task(engine.died())
        await until(lambda: len(engine._open) == 3)
        await asyncio.sleep(0)
        process.kill()
        async with asyncio.timeout(5):
            failures = [await read(running), await read(queued), await bridged, await dead]
            with pytest.raises(Exception, match="EngineCore"):
                await forgotten
        assert {str(failure) for failure in failures} == {
            f"the vLLM engine has died ({ending}): start the engine anew, or set restart"
        }
        with pytest.raises(EngineUnavailable, match="start the engine anew, or set restart"):
            await engine.submit([1], LONG)
        assert engine.unfinished == 0
    assert "has died" in caplog.text
    assert not engine_processes()


def in_a_loop_of_its_own(engine: Engine) -> EngineUnavailable:
    with pytest.raises(EngineUnavailable) as caught:
        asyncio.run(ask(engine))
    return caught.value


async def test_an_idle_engine_that_dies_is_noticed_and_started_again(tmp_path: Path) -> None:
    adapters = {"法": str(write_adapter(tmp_path / "adapter"))}
    async with Engine.start(EngineOptions(**SMALL, restart=True, adapters=adapters)) as engine:
        await engine.health()
        (process,) = engine_processes()
        process.kill()
        began = time.monotonic()
        while (trouble := await unhealthy(engine)) is None:
            assert time.monotonic() - began < 1
            await asyncio.sleep(0.01)
        assert "it is being started again" in str(trouble)
        with pytest.raises(EngineUnavailable, match="it is being started again"):
            await engine.submit([1], LONG)
        async with asyncio.timeout(60):
            while await unhealthy(engine):  # noqa: ASYNC110 (that it runs again has no event)
                await asyncio.sleep(0.05)
        assert "Paris" in await ask(engine)
        assert [adapter.name for adapter in engine.adapters.list()] == ["法"]
        generation = await engine.submit([1, 2, 3], SamplingOptions(max_tokens=2, ignore_eos=True), adapter="法")
        assert sum([len(delta.token_ids) async for delta in generation]) == 2
        assert len(engine_processes()) == 1
        dead = asyncio.create_task(engine.died())
    with pytest.raises(EngineStopping):
        await dead
    assert not engine_processes()


async def unhealthy(engine: Engine) -> EngineUnavailable | None:
    try:
        await engine.health()
    except EngineUnavailable as trouble:
        return trouble
    return None


@pytest.fixture(scope="module")
def cut_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model with half of its weights."""
    folder = tmp_path_factory.mktemp("cut") / "model"
    shutil.copytree(resolve(EngineOptions().model), folder)
    (weights,) = folder.glob("*.safetensors")
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size // 2)
    return folder


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"kv_cache_gib": 10_000},
            r"the KV cache needs 10000\.0 GiB, [\d.]+ of [\d.]+ GiB are free: lower kv_cache_gib",
        ),
        (
            {"kv_cache_gib": 0.05, "max_model_len": 8192},
            r"max_model_len 8192 needs 0\.\d+ GiB of KV cache, 0\.05 GiB are available: "
            r"set max_model_len to \d+ or less, or raise kv_cache_gib",
        ),
        ({"model": "cut"}, "SafetensorError: .*"),
        ({"model": "nobody/nothing"}, "the model nobody/nothing cannot be loaded: it is no folder"),
        ({"dtype": "float7"}, "dtype: .*'bfloat16'"),
        ({"quantization": "nonsense"}, r"Unknown quantization method: nonsense\. Must be one of \['awq'"),
        ({"max_model_len": 1_000_000}, r"max_model_len \(1000000\) is greater than .*8192"),
    ],
)
async def test_a_start_that_fails_says_the_cause(options: dict[str, Any], said: str, cut_weights: Path) -> None:
    if options.get("model") == "cut":
        options = options | {"model": str(cut_weights)}
    before = run_folders()
    began = time.monotonic()
    with pytest.raises(EngineStartFailed, match=said) as caught:
        async with Engine.start(EngineOptions(**SMALL | options)):
            pass
    assert "\n" not in str(caught.value)
    assert "root cause" not in str(caught.value)
    assert time.monotonic() - began < 60
    assert not engine_processes()
    assert run_folders() == before
