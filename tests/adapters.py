"""Tiny LoRA adapters, written as peft writes them: `adapter_config.json` and `adapter_model.safetensors`."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Sizes = Mapping[str, tuple[int, int]]

SMOLLM2: Sizes = {
    "self_attn.q_proj": (576, 576),
    "self_attn.v_proj": (192, 576),
    "self_attn.o_proj": (576, 576),
    "mlp.down_proj": (576, 1536),
}
"""Rows and columns of some weights of SmolLM2-135M's 30 layers."""

TINY: Sizes = {"self_attn.q_proj": (6, 4), "mlp.down_proj": (4, 8)}
"""The same of `write_base`'s model."""


def write_adapter(
    folder: Path,
    *,
    sizes: Sizes = SMOLLM2,
    layers: Iterable[int] = range(30),
    rank: int = 8,
    seed: int = 0,
    strength: float = 0.02,
    tensors: Mapping[str, Any] | None = None,
    **config: Any,
) -> Path:
    """An adapter of random matrices; `strength` is the size of an entry of B·A, `tensors` are more of them.

    Keywords beyond these go into the configuration; None leaves a field out.
    """
    random = np.random.default_rng(seed)
    weights: dict[str, Any] = dict(tensors or {})
    for layer in layers:
        for module, (rows, columns) in sizes.items():
            key = f"base_model.model.model.layers.{layer}.{module}"
            scale = (strength / rank**0.5) ** 0.5
            weights[f"{key}.lora_A.weight"] = random.normal(0, scale, (rank, columns)).astype("float32")
            weights[f"{key}.lora_B.weight"] = random.normal(0, scale, (rows, rank)).astype("float32")
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    write_config(folder, **({"r": rank, "lora_alpha": rank, "target_modules": [*_names(sizes)]} | config))
    return folder


def write_config(folder: Path, **fields: Any) -> None:
    """Write `adapter_config.json`, without the fields that are None."""
    config = {"peft_type": "LORA", "base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct", "bias": "none"}
    given = {name: value for name, value in (config | fields).items() if value is not None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(given, ensure_ascii=False), encoding="utf-8")


def write_base(folder: Path, *, layers: int = 2, vocabulary: int = 10) -> Path:
    """The weights of a model of TINY's shapes, with tied embeddings."""
    weights = {
        f"model.layers.{layer}.{module}.weight": np.zeros(shape, dtype="float32")
        for layer in range(layers)
        for module, shape in TINY.items()
    }
    weights["model.embed_tokens.weight"] = np.zeros((vocabulary, 4), dtype="float32")
    weights["model.norm.weight"] = np.zeros(4, dtype="float32")
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    return folder


def _names(sizes: Sizes) -> Iterable[str]:
    return (module.rpartition(".")[2] for module in sizes)
