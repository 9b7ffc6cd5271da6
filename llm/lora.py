"""What a LoRA's folder holds, read and checked before vLLM sees it; knows no vLLM."""

import hashlib
import json
import logging
import pickle
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm.models import safetensors_header
from llm.protocol import AdapterRefused

CONFIG, WEIGHTS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")

Shape = tuple[int, ...]
Shapes = Mapping[str, set[Shape] | None]
"""Of each linear layer and embedding of a model, by `place`, the shapes of its weight; None: packed, not known."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter: `rank` is the highest of its modules', `target_modules` as its configuration names them."""

    name: str
    folder: Path
    rank: int
    target_modules: tuple[str, ...]


@dataclass(frozen=True)
class BaseModel:
    """The model that adapters are put on: its name, and the shapes of its weights (empty: not known)."""

    name: str
    shapes: Shapes


def read(name: str, folder: str | Path, base: BaseModel) -> Adapter:
    """The adapter in `folder`, fit for the base model. Raises AdapterRefused, and changes nothing.

    vLLM itself would take tensors that are smaller than the model's, and layers that the model lacks, without a word.
    """
    path = Path(folder).expanduser().absolute()
    trained_on = ""
    try:
        if not name.strip():
            raise AdapterRefused("it has no name")
        config = _config(path)
        trained_on = str(config.get("base_model_name_or_path") or "")
        ranks = _ranks(config)
        adapter = Adapter(name, path, max(ranks), _target_modules(config))
        _check_kind(config)
        _check_tensors(_tensors(path), ranks, base.shapes)
    except AdapterRefused as error:
        foreign = f" (it was trained on {trained_on}, this is {base.name})" if _differ(trained_on, base.name) else ""
        raise AdapterRefused(f"adapter {name!r} in {path}: {error}{foreign}") from error.__cause__
    if _differ(trained_on, base.name):
        log.warning("adapter %r was trained on %s and is loaded onto %s", name, trained_on, base.name)
    return adapter


def content_hash(adapter: Adapter) -> str:
    """A hash of the configuration and the weights; another folder with the same content has the same."""
    digest = hashlib.sha256()
    for file in (adapter.folder / CONFIG, _weights_file(adapter.folder)):
        assert file
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


def fitting_rank(rank: int, known: Iterable[int]) -> int:
    """The least of vLLM's values of `max_lora_rank` that takes this rank. Raises AdapterRefused above the largest."""
    known = sorted(known)
    if fitting := [limit for limit in known if limit >= rank]:
        return fitting[0]
    raise AdapterRefused(f"rank {rank} is above {known[-1]}, the largest that vLLM takes: train with a smaller r")


def base_model(name: str, source: str, *, revision: str | None = None, hub_cache: str | None = None) -> BaseModel:
    """The base model in the folder `source`, or in the hub's cache under that id; shapes of safetensors only."""
    folder = Path(source)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            folder = Path(snapshot_download(source, revision=revision, cache_dir=hub_cache, local_files_only=True))
        except LocalEntryNotFoundError:
            return BaseModel(name, {})  # vLLM has yet to download it
    return BaseModel(name, _shapes(folder))


def _shapes(folder: Path) -> Shapes:
    shapes: dict[str, set[Shape] | None] = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, entry in safetensors_header(file).items():
            module, _, kind = name.rpartition(".")
            known = kind == "weight" and entry["dtype"].startswith(("F", "BF")) and len(entry["shape"]) == 2
            if known or kind != "weight":
                _add_shape(shapes, place(module), tuple(entry["shape"]) if known else None)
    if "embed_tokens" in shapes:
        shapes.setdefault("lm_head", shapes["embed_tokens"])  # tied: saved once
    return shapes


def _add_shape(shapes: dict[str, set[Shape] | None], at: str, shape: Shape | None) -> None:
    if shape:
        shapes[at] = (shapes.get(at) or set()) | {shape}
    else:
        shapes.setdefault(at, None)


def place(module: str) -> str:
    """Where a module is, without the prefixes in which checkpoints and adapters of one model differ.

    `base_model.model.model.layers.3.mlp.up_proj` and `language_model.layers.3.mlp.up_proj` → `3.mlp.up_proj`.
    """
    parts = module.split(".")
    numbers = [at for at, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[numbers[0] if numbers else -1 :])


def _differ(trained_on: str, model: str) -> bool:
    """Whether two names are of different models; a name is a hub id or a folder, so only their ends can be compared."""
    ends = {name.rstrip("/").rpartition("/")[2].casefold() for name in (trained_on, model)}
    return bool(trained_on) and len(ends) > 1


def _config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise AdapterRefused("there is no such folder; of a LoRA on the hub, download it and give the folder")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise AdapterRefused(f"it holds no {CONFIG}: give the folder that peft's save_pretrained wrote") from error
    except (ValueError, OSError) as error:
        raise AdapterRefused(f"{CONFIG} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise AdapterRefused(f"{CONFIG} is no JSON object")
    return config


def _check_kind(config: dict[str, Any]) -> None:
    if config.get("peft_type", "LORA") != "LORA":
        raise AdapterRefused(f"it is a {config['peft_type']} adapter; vLLM takes LoRA")
    merge = "merge it into the model (peft's merge_and_unload) and load that"
    if not isinstance(config.get("lora_alpha"), (int, float)):
        raise AdapterRefused(f"{CONFIG} has no number lora_alpha")
    if config.get("use_dora"):
        raise AdapterRefused(f"it is a DoRA adapter, which vLLM does not take: {merge}")
    if config.get("modules_to_save"):
        raise AdapterRefused(f"it replaces whole modules (modules_to_save: {config['modules_to_save']}): {merge}")
    if config.get("bias", "none") != "none" or config.get("lora_bias"):
        raise AdapterRefused(f"it changes biases, which vLLM does not take: {merge}")
    if config.get("trainable_token_indices"):
        raise AdapterRefused(f"it changes the embeddings of single tokens, which vLLM does not take: {merge}")


def _ranks(config: dict[str, Any]) -> set[int]:
    """The ranks that modules may have."""
    pattern = config.get("rank_pattern")
    ranks = [config.get("r"), *(pattern.values() if isinstance(pattern, dict) else ())]
    for rank in ranks:
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
            raise AdapterRefused(f"the rank in {CONFIG} (r, rank_pattern) is {rank!r}, not a whole number above 0")
    return set(ranks)


def _target_modules(config: dict[str, Any]) -> tuple[str, ...]:
    modules = config.get("target_modules")
    if not modules or not isinstance(modules, (str, list)):
        raise AdapterRefused(f"{CONFIG} names no target_modules")
    return (modules,) if isinstance(modules, str) else tuple(sorted(map(str, modules)))


def _weights_file(folder: Path) -> Path | None:
    return next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)


def _tensors(folder: Path) -> dict[str, Shape]:
    """Each tensor's shape; the weights themselves are not read."""
    file = _weights_file(folder)
    if file is None:
        raise AdapterRefused(f"it holds no {WEIGHTS[0]}")
    try:
        if file.suffix == ".bin":
            import torch

            found = torch.load(file, map_location="meta", weights_only=True)
            return {name: tuple(tensor.shape) for name, tensor in found.items()}
        return {name: tuple(entry["shape"]) for name, entry in safetensors_header(file).items()}
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OSError, pickle.UnpicklingError) as error:
        raise AdapterRefused(f"{file.name} is damaged: {error}") from error


def _check_tensors(tensors: Mapping[str, Shape], ranks: set[int], base: Shapes) -> None:
    pairs: dict[str, dict[str, Shape]] = defaultdict(dict)
    for name, shape in tensors.items():
        module, kind = _split(name)
        if kind == "base":
            _check_vocabulary(module, shape, base)
        elif kind is None:
            raise AdapterRefused(f"vLLM takes no tensor {name!r}")
        else:
            pairs[module][kind] = shape
    if not pairs:
        raise AdapterRefused("it holds no LoRA weights")
    for module, pair in pairs.items():
        if ".experts" in module:  # stored in too many ways; vLLM checks them
            continue
        if set(pair) != {"A", "B"} or any(len(shape) != 2 for shape in pair.values()):
            raise AdapterRefused(f"{module} has not one matrix A and one matrix B")
        _check_pair(module, pair["A"], pair["B"], ranks, base)


def _split(name: str) -> tuple[str, str | None]:
    """Module and kind of a tensor in peft's names: A, B, base (a copy of the base model's weight), None: unknown."""
    module = name.removeprefix("base_model.model.")
    for ending, kind in {
        ".lora_A.weight": "A",
        ".lora_B.weight": "B",
        ".lora_embedding_A": "A",
        ".lora_embedding_B": "B",
        ".base_layer.weight": "base",
    }.items():
        if module.endswith(ending):
            return module.removesuffix(ending), kind
    return module, None


def _check_vocabulary(module: str, shape: Shape, base: Shapes) -> None:
    known = base.get(place(module))
    if known and shape not in known:
        raise AdapterRefused(
            f"it has tokens of its own ({module} is {_shown([shape])}, the model's {_shown(known)}): "
            "merge it into the model"
        )


def _check_pair(module: str, down: Shape, up: Shape, ranks: set[int], base: Shapes) -> None:
    if down[0] != up[1] or down[0] not in ranks:  # vLLM would take a smaller one, and scale it wrongly
        said = " or ".join(map(str, sorted(ranks)))
        raise AdapterRefused(f"{module} has rank {down[0]} and {up[1]}, {CONFIG} says {said}")
    at, fused = place(module), (up[0], down[1])
    known = base.get(at)
    if base and at not in base and _is_foreign(at, base):
        raise AdapterRefused(f"the model has no {module}")
    if known and at == "embed_tokens":
        fused = fused[::-1]  # peft's matrix A of an embedding is r × tokens
    if known and fused not in known:
        raise AdapterRefused(f"{module} is made for a weight of {_shown([fused])}, the model's is {_shown(known)}")


def _is_foreign(at: str, base: Shapes) -> bool:
    """Whether the model has no such layer, or nowhere such a module; names in between may be spelt otherwise."""
    layer, name = at.partition(".")[0], at.rpartition(".")[2]
    return not (
        any(other.partition(".")[0] == layer for other in base)
        and any(other.rpartition(".")[2] == name for other in base)
    )


def _shown(shapes: Iterable[Shape]) -> str:
    return " or ".join(" × ".join(map(str, shape)) for shape in sorted(shapes))
