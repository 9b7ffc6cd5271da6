"""Adapters come, are replaced and go while requests run; vLLM is scripted, the folders are real."""

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm import vllm_names
from llm.adapters import SPARE, Adapters, lora_fields
from llm.bridge import LoopThread, SyncCallOnLoop
from llm.lora import BaseModel
from llm.options import EngineOptions
from llm.protocol import AdapterRefused, EngineUnavailable, InvalidRequest, UnknownAdapter
from tests.adapters import TINY, write_adapter, write_base, write_config
from tests.fakes import ScriptedEngine, ScriptedSlots
from tests.llm.conftest import until

BASE = BaseModel("SmolLM2-135M-Instruct", {})
PLACES = 2


def tiny(folder: Path, seed: int = 0, **fields: Any) -> Path:
    return write_adapter(folder, **({"sizes": TINY, "layers": [0], "rank": 2, "seed": seed} | fields))


def on(slots: ScriptedSlots, loop: asyncio.AbstractEventLoop | None = None) -> Adapters:
    return Adapters(slots, BASE, loop or asyncio.get_running_loop(), new_request=SimpleNamespace)


@pytest.fixture
def slots() -> ScriptedSlots:
    return ScriptedSlots(PLACES + SPARE)


def names(adapters: Adapters) -> list[str]:
    return [adapter.name for adapter in adapters.list()]


async def settled(slots: ScriptedSlots) -> dict[int, str]:
    """What vLLM holds once everything that was begun is done, by number."""
    for _ in range(20):
        await asyncio.sleep(0)
    return {number: request.lora_name.partition("@")[0] for number, request in slots.requests.items()}


async def test_an_adapter_is_loaded_listed_named_and_unloaded(slots: ScriptedSlots, tmp_path: Path) -> None:
    adapters = on(slots)
    with pytest.raises(UnknownAdapter, match="no adapter '客服' is loaded; loaded: none"):
        adapters.enter("客服")
    loaded = await adapters.aload("客服", tiny(tmp_path))
    assert list(adapters.list()) == [loaded]
    assert (loaded.name, loaded.folder, loaded.rank, loaded.target_modules) == (
        "客服",
        tmp_path,
        2,
        ("down_proj", "q_proj"),
    )
    version = adapters.enter("客服")
    assert version and version.request.lora_path == str(tmp_path)
    await adapters.leave(version)
    await adapters.aunload("客服")
    assert (names(adapters), slots.requests) == ([], {})
    with pytest.raises(UnknownAdapter):
        await adapters.aunload("客服")


async def test_an_unknown_name_is_an_invalid_request_that_names_the_loaded_ones(
    slots: ScriptedSlots, tmp_path: Path
) -> None:
    adapters = on(slots)
    await adapters.aload("a", tiny(tmp_path))
    await adapters.aload("客服", tiny(tmp_path))
    with pytest.raises(InvalidRequest, match="no adapter 'c' is loaded; loaded: a, 客服"):
        adapters.enter("c")
    assert adapters.enter(None) is None
    await adapters.leave(None)


async def test_the_same_content_is_not_loaded_twice_and_other_content_is(slots: ScriptedSlots, tmp_path: Path) -> None:
    adapters = on(slots)
    await adapters.aload("a", tiny(tmp_path / "one"))
    await adapters.aload("a", tmp_path / "one")
    moved = await adapters.aload("a", tiny(tmp_path / "two"))
    assert list(slots.requests) == [1]
    assert (moved.folder, list(adapters.list())) == (tmp_path / "two", [moved])
    before = slots.requests[1].lora_name
    await adapters.aload("a", tiny(tmp_path / "one", seed=1))
    (number,) = slots.requests
    assert number != 1 and slots.requests[number].lora_name != before


async def test_two_names_for_one_content_are_two_adapters(slots: ScriptedSlots, tmp_path: Path) -> None:
    adapters = on(slots)
    for name in ("a", "b"):
        await adapters.aload(name, tiny(tmp_path))
    assert len({request.lora_name for request in slots.requests.values()}) == 2


async def test_the_same_content_finds_its_blocks_in_the_prefix_cache_again(
    slots: ScriptedSlots, tmp_path: Path
) -> None:
    adapters = on(slots)
    await adapters.aload("a", tiny(tmp_path))
    before = slots.requests[1].lora_name
    await adapters.aunload("a")
    await adapters.aload("a", tmp_path)
    assert slots.requests[2].lora_name == before


async def test_requests_that_run_end_on_the_weights_they_began_with(slots: ScriptedSlots, tmp_path: Path) -> None:
    adapters = on(slots)
    await adapters.aload("a", tiny(tmp_path, seed=1))
    first, second = adapters.enter("a"), adapters.enter("a")
    await adapters.aload("a", tiny(tmp_path, seed=2))
    newer = adapters.enter("a")
    assert first and newer and first is second and newer.request.lora_int_id == 2
    assert await settled(slots) == {1: "a", 2: "a"}
    await adapters.leave(first)
    assert set(await settled(slots)) == {1, 2}
    await adapters.leave(second)
    assert set(await settled(slots)) == {2}
    await adapters.aunload("a")
    assert names(adapters) == [] and set(await settled(slots)) == {2}
    await adapters.leave(newer)
    assert await settled(slots) == {}


async def test_an_unloaded_adapter_that_still_runs_comes_back_as_it_is(slots: ScriptedSlots, tmp_path: Path) -> None:
    adapters = on(slots)
    await adapters.aload("a", tiny(tmp_path))
    version = adapters.enter("a")
    await adapters.aunload("a")
    await adapters.aload("a", tmp_path)
    assert adapters.enter("a") is version
    await adapters.leave(version)
    await adapters.leave(version)
    assert await settled(slots) == {1: "a"}


async def test_beyond_the_places_a_load_is_refused_with_the_number(slots: ScriptedSlots, tmp_path: Path) -> None:
    adapters = on(slots)
    for name in ("a", "b"):
        await adapters.aload(name, tiny(tmp_path))
    with pytest.raises(AdapterRefused, match=r"'c' has no place, all 2 are taken \(a, b\).*max_adapters=3"):
        await adapters.aload("c", tmp_path)
    await adapters.aunload("a")
    await adapters.aload("c", tmp_path)
    assert names(adapters) == ["b", "c"]


async def test_a_replacement_waits_its_turn_when_older_weights_still_run(slots: ScriptedSlots, tmp_path: Path) -> None:
    adapters = on(slots)
    for name in ("a", "b"):
        await adapters.aload(name, tiny(tmp_path))
    version = adapters.enter("a")
    await adapters.aload("a", tiny(tmp_path, seed=1))
    with pytest.raises(AdapterRefused, match="as long as 1 requests run on weights that were replaced"):
        await adapters.aload("a", tiny(tmp_path, seed=2))
    await adapters.leave(version)
    await adapters.aload("a", tmp_path)
    assert names(adapters) == ["a", "b"] and PLACES + SPARE - 1 not in slots.ever_used


async def test_a_load_that_vllm_refuses_leaves_everything_as_it_was(slots: ScriptedSlots, tmp_path: Path) -> None:
    adapters = on(slots)
    for name in ("a", "b"):
        await adapters.aload(name, tiny(tmp_path))
    for _ in range(3):
        slots.failure = Exception("Call to add_lora method failed: The size of tensor a must match")
        with pytest.raises(AdapterRefused, match=f"^adapter 'a' in {tmp_path}: The size of tensor a must match$"):
            await adapters.aload("a", tiny(tmp_path, seed=1))
    assert await settled(slots) == {1: "a", 2: "b"}
    assert PLACES + SPARE - 1 not in slots.ever_used
    version = adapters.enter("a")
    assert version and version.request.lora_int_id == 1


async def test_a_bad_folder_never_reaches_vllm(slots: ScriptedSlots, tmp_path: Path) -> None:
    adapters = on(slots)
    write_config(tmp_path, r=64, lora_alpha=1, target_modules=["q_proj"])
    with pytest.raises(AdapterRefused, match=r"no adapter_model\.safetensors"):
        await adapters.aload("a", tmp_path)
    with pytest.raises(AdapterRefused, match=r"rank 64, the engine takes at most 16: start it with max_lora_rank=64"):
        await adapters.aload("a", tiny(tmp_path, rank=64))
    assert (names(adapters), slots.ever_used) == ([], set())


async def test_without_room_from_the_start_the_option_is_named(tmp_path: Path) -> None:
    adapters = on(ScriptedSlots(0))
    with pytest.raises(AdapterRefused, match="LoRA is off: start the engine with max_adapters=4"):
        await adapters.aload("a", tiny(tmp_path))
    with pytest.raises(UnknownAdapter):
        adapters.enter("a")


async def test_a_cancelled_load_leaves_nothing_behind(slots: ScriptedSlots, tmp_path: Path) -> None:
    adapters = on(slots)
    slots.gate = asyncio.Event()
    loading = asyncio.create_task(adapters.aload("a", tiny(tmp_path)))
    await until(lambda: slots.requests)
    loading.cancel()
    after = asyncio.create_task(adapters.aload("b", tmp_path))
    await asyncio.sleep(0)
    slots.gate.set()
    await asyncio.gather(loading, after, return_exceptions=True)
    assert loading.cancelled()
    assert (await settled(slots), names(adapters)) == ({2: "b"}, ["b"])
    await adapters.aload("a", tmp_path)
    assert names(adapters) == ["b", "a"]


async def test_a_cancelled_leave_still_frees_the_weights(slots: ScriptedSlots, tmp_path: Path) -> None:
    adapters = on(slots)
    await adapters.aload("a", tiny(tmp_path))
    version = adapters.enter("a")
    await adapters.aunload("a")
    leaving = asyncio.create_task(adapters.leave(version))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert leaving.cancelled() and await settled(slots) == {}


async def test_a_load_waits_for_the_weights_that_are_leaving(
    slots: ScriptedSlots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters, looked_for_room = on(slots), asyncio.Event()
    look = adapters._refuse_without_room

    async def watched(name: str) -> None:
        looked_for_room.set()
        await look(name)

    monkeypatch.setattr(adapters, "_refuse_without_room", watched)
    for name in ("a", "b"):
        await adapters.aload(name, tiny(tmp_path / name))
    version = adapters.enter("a")
    await adapters.aload("a", tiny(tmp_path / "c", seed=1))
    slots.gate = asyncio.Event()
    leaving = asyncio.create_task(adapters.leave(version))
    await until(lambda: version and version.leaving)
    looked_for_room.clear()
    loading = asyncio.create_task(adapters.aload("a", tmp_path / "a"))
    await until(looked_for_room.is_set)
    assert set(await settled(slots)) == {1, 2, 3}
    slots.gate.set()
    await asyncio.gather(leaving, loading)
    assert await settled(slots) == {2: "b", 4: "a"}


async def test_loads_at_the_same_time_go_one_after_the_other(slots: ScriptedSlots, tmp_path: Path) -> None:
    adapters = on(slots)
    folders = [tiny(tmp_path / str(seed), seed) for seed in range(6)]
    await asyncio.gather(*(adapters.aload("a", folder) for folder in folders))
    assert set((await settled(slots)).values()) == {"a"} and len(slots.requests) == 1
    assert slots.ever_used <= {0, 1}


async def test_when_the_engine_dies_a_load_says_so_and_leaving_is_silent(slots: ScriptedSlots, tmp_path: Path) -> None:
    adapters = on(slots)
    await adapters.aload("a", tiny(tmp_path))
    version = adapters.enter("a")
    slots.failure, slots.errored = RuntimeError("EngineCore encountered an issue"), True
    with pytest.raises(EngineUnavailable, match="died while it loaded adapter 'b'"):
        await adapters.aload("b", tmp_path)
    await adapters.aunload("a")
    await adapters.leave(version)


def test_adapters_are_loaded_from_other_threads_and_other_loops(tmp_path: Path, far: LoopThread) -> None:
    adapters = on(ScriptedSlots(), far.loop)
    adapters.load("a", tiny(tmp_path))
    asyncio.run(adapters.aload("b", tmp_path))
    assert names(adapters) == ["a", "b"]
    adapters.unload("a")
    asyncio.run(adapters.aunload("b"))
    assert names(adapters) == []
    with pytest.raises(UnknownAdapter):
        adapters.unload("a")


async def test_a_blocking_load_on_the_engines_own_loop_is_refused(slots: ScriptedSlots, tmp_path: Path) -> None:
    with pytest.raises(SyncCallOnLoop):
        on(slots).load("a", tiny(tmp_path))


@pytest.fixture(scope="session")
def contents(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("contents")
    return [tiny(folder / str(seed), seed) for seed in range(3)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("load"), st.sampled_from("abc"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("unload"), st.sampled_from("abc")),
        st.tuples(st.just("enter"), st.sampled_from("abc")),
        st.tuples(st.just("leave"), st.integers(0, 9)),
    ),
    max_size=30,
)


@given(steps=STEPS)
def test_whatever_happens_running_weights_stay_and_the_last_slot_is_never_taken(
    contents: list[Path], steps: list[Any]
) -> None:
    asyncio.run(_happens(contents, steps))


async def _happens(contents: list[Path], steps: list[Any]) -> None:
    slots = ScriptedSlots(PLACES + SPARE)
    adapters = on(slots)
    running: list[Any] = []
    expected: dict[str, int] = {}
    for step, *what in steps:
        match step, what:
            case "load", (name, content, fails):
                slots.failure = Exception("does not fit") if fails else None
                try:
                    await adapters.aload(name, contents[content])
                    expected[name] = content
                except AdapterRefused:
                    pass
            case "unload", (name,) if name in expected:
                await adapters.aunload(name)
                del expected[name]
            case "enter", (name,) if name in expected:
                running.append(adapters.enter(name))
                assert running[-1].adapter.folder == contents[expected[name]]
            case "leave", (at,) if at < len(running):
                await adapters.leave(running.pop(at))
        assert sorted(names(adapters)) == sorted(expected)
        assert {version.request.lora_int_id for version in running} <= set(slots.requests)
        assert PLACES + SPARE - 1 not in slots.ever_used
    while running:
        await adapters.leave(running.pop())
    assert sorted((await settled(slots)).values()) == sorted(expected)


@pytest.fixture
def known_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In vLLM's place, which takes 10 s to import."""
    monkeypatch.setitem(vars(vllm_names), "MaxLoRARanks", Literal[1, 8, 16, 32, 64])


@pytest.fixture
def base(tmp_path: Path) -> str:
    return str(write_base(tmp_path / "base"))


@pytest.mark.parametrize(("rank", "limit"), [(2, 16), (16, 16), (17, 32), (32, 32), (33, 64)])
def test_the_rank_is_read_before_the_start(known_ranks: None, base: str, tmp_path: Path, rank: int, limit: int) -> None:
    folder = tiny(tmp_path / "a", rank=rank)
    fields = lora_fields(EngineOptions(adapters={"a": str(folder), "b": str(tiny(tmp_path / "b"))}), base)
    assert fields == {"enable_lora": True, "max_lora_rank": limit, "max_loras": 4 + SPARE, "max_cpu_loras": 4 + SPARE}


def test_lora_is_off_unless_it_is_asked_for(base: str) -> None:
    assert lora_fields(EngineOptions(), base) == {}
    assert lora_fields(EngineOptions(max_lora_rank=64, max_loras=2), base) == {}


@pytest.mark.parametrize(
    ("options", "slots", "kept"),
    [
        ({"max_adapters": 1}, 1 + SPARE, 1 + SPARE),
        ({"max_adapters": 9}, 9 + SPARE, 9 + SPARE),
        ({"enable_lora": True}, 4 + SPARE, 4 + SPARE),
        ({"enable_lora": True, "max_loras": 2}, 2 + SPARE, 2 + SPARE),
        ({"max_adapters": 1, "max_cpu_loras": 20}, 1 + SPARE, 20),
        ({"max_adapters": 3, "max_cpu_loras": 2}, 3 + SPARE, 3 + SPARE),
    ],
)
def test_there_is_one_slot_for_a_change_and_one_that_stays_zero(
    known_ranks: None, base: str, options: Any, slots: int, kept: int
) -> None:
    fields = lora_fields(EngineOptions(**options), base)
    assert (fields["enable_lora"], fields["max_lora_rank"]) == (True, 16)
    assert (fields["max_loras"], fields["max_cpu_loras"]) == (slots, kept)


def test_many_adapters_at_the_start_have_their_places(known_ranks: None, base: str, tmp_path: Path) -> None:
    adapters = {str(number): str(tiny(tmp_path / "a")) for number in range(6)}
    assert lora_fields(EngineOptions(adapters=adapters), base)["max_loras"] == 6 + SPARE
    with pytest.raises(AdapterRefused, match="max_adapters is 5, adapters names 6"):
        lora_fields(EngineOptions(adapters=adapters, max_adapters=5), base)


def test_an_explicit_rank_wins_and_a_higher_adapter_is_refused_with_both_numbers(base: str, tmp_path: Path) -> None:
    adapters = {"a": str(tiny(tmp_path / "a", rank=32))}
    assert lora_fields(EngineOptions(adapters=adapters, max_lora_rank=320), base)["max_lora_rank"] == 320
    with pytest.raises(
        AdapterRefused, match=r"'a' has rank 32, the engine takes at most 8: start it with max_lora_rank"
    ):
        lora_fields(EngineOptions(adapters=adapters, max_lora_rank=8), base)


def test_a_bad_adapter_is_refused_before_the_start(known_ranks: None, base: str, tmp_path: Path) -> None:
    with pytest.raises(AdapterRefused, match="no such folder"):
        lora_fields(EngineOptions(adapters={"a": str(tmp_path / "missing")}), base)
    foreign = tiny(tmp_path / "foreign", sizes={"self_attn.q_proj": (6, 9)})
    with pytest.raises(AdapterRefused, match=r"6 × 9, the model's is 6 × 4"):
        lora_fields(EngineOptions(adapters={"a": str(foreign)}), base)


async def test_the_scripted_engine_lists_what_is_loaded(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    await engine.adapters.aload("客服", tiny(tmp_path))
    assert names(engine.adapters) == ["客服"]
    shutil.rmtree(tmp_path)
    await engine.adapters.aunload("客服")
