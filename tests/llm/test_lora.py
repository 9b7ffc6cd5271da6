"""A LoRA's folder is read, and refused in plain words where vLLM would fail, or worse, would not."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from llm.lora import BaseModel, base_model, content_hash, fitting_rank, place, read
from llm.protocol import AdapterRefused
from tests.adapters import TINY, write_adapter, write_base, write_config

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
LAYER = "base_model.model.model.layers.0"
UNKNOWN = BaseModel("SmolLM2-135M-Instruct", {})


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    return base_model("here/SmolLM2-135M-Instruct", str(write_base(tmp_path_factory.mktemp("base"))))


def tiny(folder: Path, **fields: Any) -> Path:
    return write_adapter(folder, **({"sizes": TINY, "layers": range(2), "rank": 2} | fields))


def matrices(module: str, down: tuple[int, ...], up: tuple[int, ...], kind: str = "lora_%s.weight") -> dict[str, Any]:
    shapes = {kind % "A": down, kind % "B": up}
    return {f"base_model.model.{module}.{name}": np.zeros(shape, "float32") for name, shape in shapes.items()}


def test_rank_and_modules_come_from_the_configuration(base: BaseModel, tmp_path: Path) -> None:
    folder = tiny(tmp_path / "适配器", target_modules=["q_proj", "down_proj"])
    adapter = read("客服", folder, base)
    assert (adapter.name, adapter.folder, adapter.rank) == ("客服", folder, 2)
    assert adapter.target_modules == ("down_proj", "q_proj")


def test_the_highest_rank_of_a_pattern_counts(base: BaseModel, tmp_path: Path) -> None:
    assert read("a", tiny(tmp_path, rank_pattern={"q_proj": 24, "down_proj": 4}), base).rank == 24


def test_a_relative_folder_becomes_an_absolute_one(
    base: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read("a", tiny(tmp_path / "lora").relative_to(tmp_path), base).folder == tmp_path / "lora"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"r": None}, "the rank .* is None"),
        ({"r": 0}, "the rank .* is 0"),
        ({"r": "16"}, "the rank .* is '16'"),
        ({"rank_pattern": {"q_proj": -1}}, "the rank .* is -1"),
        ({"lora_alpha": None}, "no number lora_alpha"),
        ({"target_modules": None}, "no target_modules"),
        ({"peft_type": "PREFIX_TUNING"}, "PREFIX_TUNING adapter; vLLM takes LoRA"),
        ({"use_dora": True}, "DoRA.*merge_and_unload"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save: .*lm_head.*merge_and_unload"),
        ({"bias": "lora_only"}, "biases"),
        ({"lora_bias": True}, "biases"),
        ({"trainable_token_indices": [1]}, "embeddings of single tokens"),
        ({"r": 1}, "has rank 2 and 2, adapter_config.json says 1"),
    ],
)
def test_a_configuration_that_vllm_cannot_serve_is_refused(
    base: BaseModel, tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(AdapterRefused, match=f"adapter 'a' in {tmp_path}: .*{said}"):
        read("a", tiny(tmp_path, **fields), base)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"r"', "\udce9".encode("utf-8", "surrogateescape")])
def test_a_configuration_that_is_none_is_refused(base: BaseModel, tmp_path: Path, text: str | bytes) -> None:
    tiny(tmp_path)
    (tmp_path / "adapter_config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(AdapterRefused, match=r"adapter_config\.json (cannot be read|is no JSON object)"):
        read("a", tmp_path, base)


def test_what_is_no_adapters_folder_is_refused(base: BaseModel, tmp_path: Path) -> None:
    with pytest.raises(AdapterRefused, match="no such folder"):
        read("a", tmp_path / "missing", base)
    with pytest.raises(AdapterRefused, match=r"no adapter_config\.json"):
        read("a", tmp_path, base)
    write_config(tmp_path, r=2, lora_alpha=2, target_modules=["q_proj"])
    with pytest.raises(AdapterRefused, match=r"no adapter_model\.safetensors"):
        read("a", tmp_path, base)
    with pytest.raises(AdapterRefused, match="no name"):
        read(" ", tiny(tmp_path), base)


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 64, b"\x02" + b"\0" * 7 + b"[]"])
def test_weights_that_are_none_are_refused(base: BaseModel, tmp_path: Path, content: bytes) -> None:
    file = tiny(tmp_path) / "adapter_model.safetensors"
    file.write_bytes(content)
    with pytest.raises(AdapterRefused, match="is damaged"):
        read("a", tmp_path, base)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("whole"))


@given(share=st.floats(0, 1, exclude_max=True))
def test_weights_cut_short_anywhere_are_refused(
    base: BaseModel, whole: Path, tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    shutil.copytree(whole, folder, dirs_exist_ok=True)
    content = (whole / "adapter_model.safetensors").read_bytes()
    (folder / "adapter_model.safetensors").write_bytes(content[: int(share * len(content))])
    with pytest.raises(AdapterRefused, match="is damaged"):
        read("a", folder, base)


def test_torchs_own_format_is_read_too(base: BaseModel, tmp_path: Path) -> None:
    import torch

    file = tiny(tmp_path) / "adapter_model.safetensors"
    file.unlink()
    key = f"{LAYER}.self_attn.q_proj.lora_%s.weight"
    torch.save({key % "A": torch.zeros(2, 4), key % "B": torch.zeros(6, 2)}, tmp_path / "adapter_model.bin")
    assert read("a", tmp_path, base).rank == 2
    torch.save({key % "A": torch.zeros(2, 5), key % "B": torch.zeros(6, 2)}, tmp_path / "adapter_model.bin")
    with pytest.raises(AdapterRefused, match="6 × 5"):
        read("a", tmp_path, base)
    (tmp_path / "adapter_model.bin").write_bytes(b"cposix\nsystem\n")
    with pytest.raises(AdapterRefused, match=r"adapter_model\.bin is damaged"):
        read("a", tmp_path, base)


@pytest.mark.parametrize("rows", [5, 7])
@pytest.mark.parametrize("columns", [3, 5])
def test_smaller_and_larger_matrices_than_the_models_are_refused(
    base: BaseModel, tmp_path: Path, rows: int, columns: int
) -> None:
    folder = tiny(tmp_path, sizes={"self_attn.q_proj": (rows, columns)})
    said = f"layers.0.self_attn.q_proj is made for a weight of {rows} × {columns}, the model's is 6 × 4"
    with pytest.raises(AdapterRefused, match=said):
        read("a", folder, base)
    assert read("a", folder, UNKNOWN)


def test_matrices_of_another_rank_than_the_configuration_says_are_refused(base: BaseModel, tmp_path: Path) -> None:
    config = tiny(tmp_path) / "adapter_config.json"
    said = json.loads(config.read_text())
    assert said["r"] == 2
    config.write_text(json.dumps(said | {"r": 8}))
    with pytest.raises(AdapterRefused, match=r"has rank 2 and 2, adapter_config\.json says 8"):
        read("a", tmp_path, base)
    config.write_text(json.dumps(said | {"r": 8, "rank_pattern": {"q_proj": 2}}))
    assert read("a", tmp_path, base).rank == 8


def test_an_adapter_with_more_layers_than_the_model_is_refused(base: BaseModel, tmp_path: Path) -> None:
    with pytest.raises(AdapterRefused, match=r"the model has no model\.layers\.2\."):
        read("a", tiny(tmp_path, layers=range(3)), base)


def test_an_adapter_for_modules_that_the_model_has_not_is_refused(base: BaseModel, tmp_path: Path) -> None:
    folder = tiny(
        tmp_path, sizes={"attention.query_key_value": (6, 4)}, base_model_name_or_path="EleutherAI/pythia-70m"
    )
    said = (
        r"no model\.layers\.0\.attention\.query_key_value .it was trained on EleutherAI/pythia-70m, this is here/Smol"
    )
    with pytest.raises(AdapterRefused, match=said):
        read("a", folder, base)


def test_another_models_name_alone_is_a_warning(
    base: BaseModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        read("a", tiny(tmp_path, base_model_name_or_path="/elsewhere/smollm2-135m-instruct/"), base)
        read("a", tiny(tmp_path, base_model_name_or_path=None), base)
        assert not caplog.records
        read("客服", tiny(tmp_path, base_model_name_or_path="Qwen/Qwen3-8B"), base)
    assert "'客服' was trained on Qwen/Qwen3-8B" in caplog.text


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        (matrices("model.layers.0.self_attn.q_proj", (2, 4), (6, 3)), "rank 2 and 3"),
        (matrices("model.layers.0.self_attn.q_proj", (3, 4), (6, 3)), r"rank 3 and 3, adapter_config\.json says 2"),
        (matrices("model.layers.0.self_attn.q_proj", (2, 4, 1), (6, 2)), "not one matrix A and one matrix B"),
        ({f"{LAYER}.self_attn.q_proj.lora_A.weight": np.zeros((2, 4))}, "not one matrix A and one matrix B"),
        (
            {"base_model.model.lm_head.weight": np.zeros((10, 4))},
            r"takes no tensor 'base_model\.model\.lm_head\.weight'",
        ),
        ({f"{LAYER}.self_attn.q_proj.lora_magnitude_vector": np.zeros(4)}, "takes no tensor"),
        ({}, "no LoRA weights"),
        (
            {"base_model.model.model.embed_tokens.base_layer.weight": np.zeros((12, 4))},
            "tokens of its own .*12 × 4, the model's 10 × 4",
        ),
    ],
)
def test_tensors_that_make_no_lora_are_refused(
    base: BaseModel, tmp_path: Path, tensors: dict[str, Any], said: str
) -> None:
    folder = tiny(tmp_path, sizes={}, tensors=tensors, target_modules=["q_proj"])
    with pytest.raises(AdapterRefused, match=said):
        read("a", folder, base)


@pytest.mark.parametrize(
    "tensors",
    [
        matrices("model.embed_tokens", (2, 10), (4, 2), "lora_embedding_%s"),
        matrices("lm_head", (2, 4), (10, 2)),
        matrices("model.layers.1.mlp.experts.base_layer", (64, 4), (4, 64)),
        {"base_model.model.model.embed_tokens.base_layer.weight": np.zeros((10, 4), "float32")},
        matrices("language_model.layers.1.self_attn.q_proj", (2, 4), (6, 2)),
    ],
    ids=["embedding", "tied output", "experts, which vLLM checks", "a copy of the embeddings", "another prefix"],
)
def test_what_vllm_takes_beside_the_usual_is_taken(base: BaseModel, tmp_path: Path, tensors: dict[str, Any]) -> None:
    assert read("a", tiny(tmp_path, layers=[0], tensors=tensors), base)


@pytest.mark.parametrize("shapes", [((2, 9), (4, 2)), ((2, 10), (5, 2))])
def test_an_embedding_of_another_size_is_refused(base: BaseModel, tmp_path: Path, shapes: Any) -> None:
    tensors = matrices("model.embed_tokens", *shapes, "lora_embedding_%s")
    with pytest.raises(AdapterRefused, match=r"embed_tokens is made for a weight of .*, the model's is 10 × 4"):
        read("a", tiny(tmp_path, tensors=tensors), base)


def test_of_packed_weights_the_name_is_checked_and_the_shape_is_not(tmp_path: Path) -> None:
    packed = {"model.layers.0.self_attn.q_proj.qweight": np.zeros((2, 3), "int32")}
    save_file(packed, tmp_path / "model.safetensors")
    base = base_model("packed", str(tmp_path))
    assert read("a", tiny(tmp_path / "a", sizes={"self_attn.q_proj": (6, 4)}, layers=[0]), base)
    with pytest.raises(AdapterRefused, match="the model has no"):
        read("a", tiny(tmp_path / "b", sizes={"self_attn.v_proj": (6, 4)}, layers=[0]), base)


def test_a_model_in_the_hubs_cache_is_known_and_one_not_there_is_not(tmp_path: Path) -> None:
    cache = tmp_path / "models--org--name"
    write_base(cache / "snapshots" / ("0" * 40))
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0" * 40)
    assert base_model("org/name", "org/name", hub_cache=str(tmp_path)).shapes["1.mlp.down_proj"] == {(4, 8)}
    assert base_model("org/other", "org/other", hub_cache=str(tmp_path)).shapes == {}


def test_the_content_decides_whether_two_adapters_are_the_same(base: BaseModel, tmp_path: Path) -> None:
    def content(folder: str, **fields: Any) -> str:
        return content_hash(read("a", tiny(tmp_path / folder, **fields), base))

    assert content("one") == content("two") == content("one")
    assert len({content("one"), content("one", seed=1), content("two", lora_alpha=4)}) == 3


@given(st.integers(1, 512))
def test_the_next_rank_that_vllm_knows_is_taken(rank: int) -> None:
    fitting = fitting_rank(rank, reversed(RANKS))
    assert fitting in RANKS and fitting >= rank
    assert not [known for known in RANKS if rank <= known < fitting]


def test_a_rank_above_vllms_highest_is_refused_with_both_numbers() -> None:
    with pytest.raises(AdapterRefused, match=r"rank 513 is above 512"):
        fitting_rank(513, RANKS)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("base_model.model.model.layers.3.mlp.up_proj", "3.mlp.up_proj"),
        ("language_model.model.layers.3.mlp.up_proj", "3.mlp.up_proj"),
        ("model.layers.3.mlp.experts.11.w1", "3.mlp.experts.11.w1"),
        ("lm_head", "lm_head"),
        ("model.embed_tokens", "embed_tokens"),
    ],
)
def test_a_place_begins_at_the_layers_number(module: str, expected: str) -> None:
    assert place(module) == expected
