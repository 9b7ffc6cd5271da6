"""What we run inside vLLM's processes: they write to our log, keep to our folder and end when their parent does.

The way in is vLLM's executor class, which it hands to the process of its engine: a class of this module.
"""

import logging
import os
import sys
import tempfile
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from llm import vllm_names
from llm.starting.engine_log import PIPE, TOLD
from llm.starting.run_folder import remove

JOIN = "GROUNDWELL_JOIN"
"""Environment of vLLM's processes: the pid of ours and the run folder, with a colon between."""
WATCH = "groundwell-parent"
EXECUTORS = ("UniProcExecutor", "MultiprocExecutor")


def executor_class(config: Any) -> Any:
    """vLLM's executor for a VllmConfig, in our form where it is one of vLLM's two for a single machine."""
    chosen = vllm_names.Executor.get_class(config)
    ours = chosen.__name__ in EXECUTORS and chosen is getattr(vllm_names, chosen.__name__)
    return getattr(sys.modules[__name__], chosen.__name__) if ours else chosen


def __getattr__(name: str) -> Any:
    """vLLM's executor of that name in our form, made at first use: in a spawned process that is when pickle asks.

    No code of ours could run earlier in it. In a forked one the class is there already, its constructor runs soon.
    """
    if name not in EXECUTORS:
        raise AttributeError(name)
    join_parent()
    parent = getattr(vllm_names, name)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        join_parent()
        parent.__init__(self, *args, **kwargs)

    made = type(name, (parent,), {"__init__": __init__, "__module__": __name__})
    return globals().setdefault(name, made)


def join_parent() -> None:
    """In a process of vLLM, make it ours; once, and nothing in the process that starts the engine."""
    parent, _, folder = os.environ.get(JOIN, "").partition(":")
    if not parent or int(parent) == os.getpid() or any(thread.name == WATCH for thread in threading.enumerate()):
        return
    threading.Thread(target=_end_with, args=(int(parent), folder), name=WATCH, daemon=True).start()
    _write_to(Path(folder, PIPE))
    tempfile.tempdir = folder  # not in the environment: a change there can keep vLLM from naming its process
    warnings.filterwarnings("ignore", category=FutureWarning)  # torch's deprecations are not the user's


def tell_parent(why: str) -> None:
    """Say why this process cannot become the engine's."""
    if folder := os.environ.get(JOIN, "").partition(":")[2]:
        with Path(folder, PIPE).open("r+b", buffering=0) as pipe:
            pipe.write(f"{TOLD}{why}\n".encode())


def _write_to(pipe: Path) -> None:
    opened = os.open(pipe, os.O_RDWR)  # for writing only it would wait for a reader, who may have died
    for stream in (1, 2):
        os.dup2(opened, stream)
    # A forked process has inherited Python's streams too, and they may write elsewhere (pytest, notebooks).
    sys.stdout = sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
    for handler in logging.getLogger("vllm").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)


def _end_with(parent: int, folder: str) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    remove(Path(folder))
    end_tree(os.getpid())


def end_tree(pid: int) -> None:
    """Kill a process and all below it; vLLM's do not listen to anything gentler while they start."""
    import psutil  # vLLM's own requirement

    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (*root.children(recursive=True), root):
            with suppress(psutil.NoSuchProcess):
                process.kill()
