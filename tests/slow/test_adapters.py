"""LoRA adapters on the real engine: who gets which weights, what a bad one does, and what a change leaves behind."""

import os

# Read when torch and vLLM are imported, so before anything else.
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}

import asyncio
import itertools
import shutil
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm.adapters import SPARE
from llm.chat import ChatVLLM
from llm.engine import Engine
from llm.lora import BaseModel
from llm.options import EngineOptions, SamplingOptions
from llm.protocol import AdapterRefused, Delta, EngineStartFailed, Generation, UnknownAdapter
from tests.adapters import SMOLLM2, write_adapter

pytestmark = pytest.mark.filterwarnings("default")  # vLLM and torch warn of each other

# In float32, since bfloat16 rounds otherwise in a batch than alone.
OPTIONS: dict[str, Any] = {"max_model_len": 1024, "kv_cache_gib": 0.3, "dtype": "float32", "fast_start": True}
QUESTION = "The capital of France is"
LONG = "Say it again, and say it well: the soil probe measures moisture every ten minutes. " * 2
PLACES = 2

salts = itertools.count()


@dataclass
class Asker:
    """Asks the engine from the test's thread; everything greedy."""

    engine: Engine
    folders: dict[str, Path] = field(default_factory=dict)

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.engine.loop).result(90)

    def __call__(self, question: str = QUESTION, adapter: str | None = None) -> str:
        return self.together([(question, adapter)])[0]

    def together(self, asked: Sequence[tuple[str, str | None]]) -> list[str]:
        """The answers to what is submitted at once; no prompt is in the prefix cache."""
        return self.run(self._together(asked))

    async def _together(self, asked: Sequence[tuple[str, str | None]]) -> list[str]:
        running = [await self.submit(question, adapter, cache_salt=str(next(salts))) for question, adapter in asked]
        return await asyncio.gather(*(text(generation) for generation in running))

    async def submit(self, question: str, adapter: str | None, **options: Any) -> Generation:
        return await self.engine.submit(
            self.ids(question), SamplingOptions(**({"max_tokens": 8} | options)), adapter=adapter
        )

    def ids(self, question: str) -> list[int]:
        return self.engine.tokenizer.encode(question)

    def with_cache(self, adapter: str | None) -> tuple[str, int]:
        """The answer to LONG, and how many tokens of it were in the prefix cache."""

        async def ask() -> list[Delta]:
            return [delta async for delta in await self.submit(LONG, adapter)]

        deltas = self.run(ask())
        return "".join(delta.text for delta in deltas), deltas[-1].cached_tokens

    def in_vllm(self) -> int:
        """How many adapters vLLM holds."""
        return len(self.run(self.engine._llm.list_loras()))


async def text(generation: Generation) -> str:
    async with aclosing(generation):
        return "".join([delta.text async for delta in generation])


@pytest.fixture(scope="module")
def plain() -> tuple[str, str]:
    """The answers to QUESTION and LONG of an engine without LoRA, which is stopped before the other one starts."""
    with Engine.start_in_thread(EngineOptions(**OPTIONS)) as engine:
        ask = Asker(engine)
        with pytest.raises(UnknownAdapter, match="no adapter '客服' is loaded; loaded: none"):
            ask(adapter="客服")
        with pytest.raises(AdapterRefused, match="LoRA is off: start the engine with max_adapters"):
            engine.adapters.load("客服", ".")
        return ask(QUESTION), ask(LONG)


@pytest.fixture(scope="module")
def started(plain: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """An engine that was started with an adapter of rank 32, above vLLM's default."""
    home = tmp_path_factory.mktemp("适配器")
    folders = {
        "客服": write_adapter(home / "客服", rank=32, seed=1, strength=0.05),
        "b": write_adapter(home / "b", rank=8, seed=2, strength=0.05),
        "c": write_adapter(home / "c", rank=4, seed=3, strength=0.05),
    }
    options = EngineOptions(**OPTIONS, adapters={"客服": str(folders["客服"])}, max_adapters=PLACES)
    with Engine.start_in_thread(options) as engine:
        yield Asker(engine, folders)


@pytest.fixture
def ask(started: Asker) -> Asker:
    """With 客服 and b loaded, and nothing else."""
    adapters = started.engine.adapters
    for adapter in adapters.list():
        if adapter.name not in ("客服", "b"):
            adapters.unload(adapter.name)
    for name in ("客服", "b"):
        adapters.load(name, started.folders[name])
    assert started.in_vllm() == PLACES
    return started


def test_a_rank_above_vllms_default_is_read_before_the_start(ask: Asker) -> None:
    limits = ask.engine._llm.vllm_config.lora_config
    assert (limits.max_lora_rank, limits.max_loras) == (32, PLACES + SPARE)
    first, second = ask.engine.adapters.list()
    assert (first.name, first.folder, first.rank) == ("客服", ask.folders["客服"], 32)
    assert (second.name, second.rank) == ("b", 8)
    assert first.target_modules == tuple(sorted(module.rpartition(".")[2] for module in SMOLLM2))


def test_a_bad_adapter_among_the_options_is_said_before_the_start(plain: tuple[str, str], tmp_path: Path) -> None:
    options = EngineOptions(**OPTIONS, adapters={"客服": str(tmp_path / "missing")})
    with pytest.raises(EngineStartFailed, match=r"adapter '客服' in .*missing: there is no such folder"):
        Engine.start_in_thread(options).__enter__()


def test_every_mix_in_a_batch_gets_its_own_weights(ask: Asker, plain: tuple[str, str]) -> None:
    alone = {adapter: ask(QUESTION, adapter) for adapter in (None, "客服", "b")}
    assert alone[None] == plain[0]
    assert len(set(alone.values())) == 3
    everybody = [None, "客服", "b"]
    mixes = [mix for size in (2, 3) for mix in itertools.permutations(everybody, size)]
    for mix in [*mixes, [None, "b", None, "客服", None]]:
        assert ask.together([(QUESTION, adapter) for adapter in mix]) == [alone[adapter] for adapter in mix], mix


def test_with_one_adapter_loaded_the_base_model_is_still_itself(ask: Asker, plain: tuple[str, str]) -> None:
    ask.engine.adapters.unload("b")
    alone = ask(QUESTION, "客服")
    for mix in ([None, "客服"], ["客服", None], ["客服", None, None, "客服"]):
        expected = [alone if adapter else plain[0] for adapter in mix]
        assert ask.together([(QUESTION, adapter) for adapter in mix]) == expected, mix


def test_an_unknown_name_is_refused_before_anything_runs(ask: Asker) -> None:
    with pytest.raises(UnknownAdapter, match="no adapter '客户' is loaded; loaded: 客服, b"):
        ask(QUESTION, "客户")
    with pytest.raises(UnknownAdapter):
        ask.run(ask.engine.beam_search([1], SamplingOptions(n=2, use_beam_search=True), adapter="客户"))
    assert ask.engine.unfinished == 0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rank": 64}, r"'bad' has rank 64, the engine takes at most 32: start it with max_lora_rank=64"),
        ({"use_dora": True}, "DoRA"),
        ({"sizes": {"self_attn.q_proj": (576, 960)}}, "made for a weight of 576 × 960, the model's is 576 × 576"),
        ({"sizes": {"self_attn.q_proj": (576, 320)}}, "made for a weight of 576 × 320, the model's is 576 × 576"),
        ({"layers": range(32)}, r"the model has no model\.layers\.30"),
        ({"init_lora_weights": "pissa"}, "vLLM does not support init_lora_weights='pissa'"),
        ({"layer_replication": [[0, 1]]}, "vLLM does not support layer_replication"),
    ],
    ids=lambda value: next(iter(value), None) if isinstance(value, dict) else "",
)
def test_a_bad_adapter_is_refused_and_the_engine_answers(
    ask: Asker, plain: tuple[str, str], tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    write_adapter(tmp_path, **fields)
    refused_everywhere(ask, tmp_path, said, plain[0])


@pytest.mark.parametrize("damage", ["an empty folder", "no weights", "cut weights", "garbage"])
def test_a_damaged_adapter_is_refused_and_the_engine_answers(
    ask: Asker, plain: tuple[str, str], tmp_path: Path, damage: str
) -> None:
    weights = tmp_path / "adapter_model.safetensors"
    if damage != "an empty folder":
        write_adapter(tmp_path)
        content = weights.read_bytes()
        weights.unlink()
    if damage == "cut weights":
        weights.write_bytes(content[:-100])
    if damage == "garbage":
        weights.write_bytes(os.urandom(1000))
    refused_everywhere(ask, tmp_path, "it holds no|is damaged", plain[0])


def refused_everywhere(ask: Asker, folder: Path, said: str, base_answer: str) -> None:
    """As a new adapter and as new weights of a loaded one."""
    before, answer = ask.engine.adapters.list(), ask(QUESTION, "客服")
    ask.engine.adapters.unload("b")
    for name in ("bad", "客服"):
        with pytest.raises(AdapterRefused, match=said.replace("'bad'", f"'{name}'")):
            ask.engine.adapters.load(name, folder)
    assert ask.in_vllm() == 1
    ask.engine.adapters.load("b", ask.folders["b"])
    assert ask.engine.adapters.list() == before
    assert ask.together([(QUESTION, None), (QUESTION, "客服")]) == [base_answer, answer]


def test_weights_that_break_half_way_into_vllm_leave_nothing_there(
    ask: Asker, plain: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the base model's shapes are not known: the last module does not fit its slot."""
    monkeypatch.setattr(ask.engine.adapters, "_base", BaseModel("unknown", {}))
    fits = {module: shape for module, shape in SMOLLM2.items() if module != "mlp.down_proj"}
    folder = write_adapter(tmp_path, sizes={**fits, "mlp.down_proj": (576, 1600)}, strength=0.5)
    for _ in range(3):
        with pytest.raises(AdapterRefused, match=rf"adapter 'b' in {folder}: The size of tensor a \(1536\) must match"):
            ask.engine.adapters.load("b", folder)
    assert ask.in_vllm() == PLACES
    answers = ask.together([(QUESTION, adapter) for adapter in ("b", None, "客服")])
    assert answers == [ask(QUESTION, "b"), plain[0], ask(QUESTION, "客服")]


def test_beyond_the_places_a_load_is_refused_with_the_number(ask: Asker) -> None:
    with pytest.raises(AdapterRefused, match=r"all 2 are taken \(客服, b\).*max_adapters=3"):
        ask.engine.adapters.load("c", ask.folders["c"])
    assert ask.in_vllm() == PLACES


def test_new_weights_under_a_loaded_name_answer_from_then_on(ask: Asker, plain: tuple[str, str]) -> None:
    """The prompt lies in the prefix cache: blocks of the old weights must not be taken for the new ones'."""
    old = ask.with_cache("b")[0]
    assert ask.with_cache("b") == (old, len(ask.ids(LONG)) // 32 * 32)
    ask.engine.adapters.load("b", ask.folders["c"])
    new, cached = ask.with_cache("b")
    assert (cached, new == old) == (0, False)
    ask.engine.adapters.unload("客服")
    ask.engine.adapters.load("c", ask.folders["c"])
    assert ask.with_cache("c") == (new, 0)
    assert ask(LONG, None) == plain[1]
    ask.engine.adapters.load("b", ask.folders["b"])
    assert ask.with_cache("b")[0] == old


def test_a_folder_that_was_written_over_is_loaded_anew(ask: Asker, tmp_path: Path) -> None:
    shutil.copytree(ask.folders["b"], tmp_path, dirs_exist_ok=True)
    old = ask(QUESTION, "b")
    ask.engine.adapters.load("b", tmp_path)
    assert ask(QUESTION, "b") == old
    shutil.copytree(ask.folders["c"], tmp_path, dirs_exist_ok=True)
    ask.engine.adapters.load("b", tmp_path)
    assert ask(QUESTION, "b") != old


def test_requests_that_run_end_on_their_weights_while_all_slots_are_taken(ask: Asker, plain: tuple[str, str]) -> None:
    old, other = ask(QUESTION, "b"), ask(QUESTION, "客服")

    async def during() -> tuple[str, list[str]]:
        generation = await ask.submit(QUESTION, "b", cache_salt=str(next(salts)))
        deltas = aiter(generation)
        begun = (await anext(deltas)).text
        await ask.engine.adapters.aload("b", ask.folders["c"])
        mixed = ask._together([(QUESTION, adapter) for adapter in (None, "b", "客服")])
        rest, answers = await asyncio.gather(text(generation), mixed)
        return begun + rest, answers

    finished, (base, new, same) = ask.run(during())
    assert (finished, base, same) == (old, plain[0], other)
    assert new not in (old, plain[0]) and new == ask(QUESTION, "b")
    assert ask.in_vllm() == PLACES


@pytest.mark.parametrize("left", [False, True], ids=["read to its end", "left"])
def test_an_adapter_that_is_unloaded_while_it_runs_leaves_after_its_last_request(ask: Asker, left: bool) -> None:
    alone = ask(QUESTION, "b")

    async def during() -> str:
        generation = await ask.submit(QUESTION, "b", cache_salt=str(next(salts)))
        begun = (await anext(aiter(generation))).text
        await ask.engine.adapters.aunload("b")
        with pytest.raises(UnknownAdapter):
            await ask.submit(QUESTION, "b")
        if left:
            await generation.aclose()
            return alone
        return begun + await text(generation)

    assert ask.run(during()) == alone
    assert ask.in_vllm() == 1
    assert ask.engine.unfinished == 0


def test_once_loaded_an_adapter_does_not_need_its_folder(ask: Asker, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    shutil.copytree(ask.folders["c"], folder)
    ask.engine.adapters.load("b", folder)
    before = ask.together([(QUESTION, "b"), (QUESTION, "客服")])
    shutil.rmtree(folder)
    assert ask.together([(QUESTION, "b"), (QUESTION, "客服")]) == before


def test_embedding_and_output_may_be_adapted_and_a_copy_of_the_embedding_is_ignored(
    ask: Asker, plain: tuple[str, str], tmp_path: Path
) -> None:
    random, model = np.random.default_rng(0), "base_model.model"
    shapes = {"model.embed_tokens.lora_embedding_%s": (49152, 576), "lm_head.lora_%s.weight": (576, 49152)}
    answers = [plain[0]]
    for key, (columns, rows) in shapes.items():
        tensors = {"A": random.normal(0, 0.3, (4, columns)), "B": random.normal(0, 0.3, (rows, 4))}
        named = {f"{model}.{key % side}": matrix.astype("float32") for side, matrix in tensors.items()}
        ask.engine.adapters.load(
            "b", write_adapter(tmp_path / "b", sizes={}, rank=4, tensors=named, target_modules="x")
        )
        answers.append(ask(QUESTION, "b"))
        assert ask.together([(QUESTION, "b"), (QUESTION, None)]) == [answers[-1], plain[0]]
    assert len(set(answers)) == 3

    copy = {f"{model}.model.embed_tokens.base_layer.weight": np.zeros((49152, 576), "float16")}
    ask.engine.adapters.load("b", write_adapter(tmp_path / "b", rank=8, seed=2, strength=0.05, tensors=copy))
    with_copy = ask(QUESTION, "b")
    ask.engine.adapters.load("b", ask.folders["b"])
    assert ask(QUESTION, "b") == with_copy


def test_beam_search_runs_on_the_adapter(ask: Asker) -> None:
    sampling = SamplingOptions(n=2, use_beam_search=True, max_tokens=6)
    beams = {
        adapter: [delta.text for delta in ask.run(ask.engine.beam_search(ask.ids(QUESTION), sampling, adapter=adapter))]
        for adapter in (None, "b")
    }
    assert beams[None] != beams["b"]
    ask.engine.adapters.unload("b")
    assert ask.in_vllm() == 1


def test_the_chat_model_names_its_adapter(ask: Asker) -> None:
    chat = ChatVLLM(engine=ask.engine, max_tokens=4)
    expected = ChatVLLM(engine=ask.engine, max_tokens=4, adapter="客服").invoke(QUESTION).content
    assert expected != chat.invoke(QUESTION).content
    assert chat.bind(adapter="客服").invoke(QUESTION).content == expected
    assert chat.invoke(QUESTION, adapter="客服").content == expected
    with pytest.raises(UnknownAdapter, match="客户"):
        chat.invoke(QUESTION, adapter="客户")
