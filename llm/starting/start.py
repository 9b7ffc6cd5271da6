"""Starting vLLM, and breaking the start off: in a thread of its own, for it blocks for 15–40 s."""

import asyncio
import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from llm import vllm_names
from llm.models import NOT_HERE, parameter_count, resolve
from llm.options import EngineOptions
from llm.protocol import EngineStartFailed
from llm.starting.child import JOIN, end_tree, executor_class, tell_parent
from llm.starting.engine_log import EngineLog
from llm.starting.launch import configure, prepare_environment
from llm.starting.run_folder import RunFolder
from llm.starting.start_failure import explained

METHOD, SOCKETS = "VLLM_WORKER_MULTIPROC_METHOD", "VLLM_RPC_BASE_PATH"
UNGUARDED = (
    "the main program starts the engine while it is imported, and vLLM's process imports it again: "
    "put the start under `if __name__ == '__main__':`, or set fast_start"
)
STARTING = threading.Lock()
"""One start at a time: vLLM takes its method and its folder from the environment."""


@dataclass(frozen=True)
class Started:
    """A running AsyncLLM, the folder it was loaded from and the number of its weights (None: not known)."""

    llm: Any
    folder: str
    parameters: int | None
    processes: Collection[BaseProcess]
    log: EngineLog
    run_folder: RunFolder
    _stopping: threading.Lock = field(default_factory=threading.Lock)

    def stop(self) -> None:
        """End vLLM's processes and remove their files; blocks for 1–5 s. Safe to call again."""
        with self._stopping:
            self.llm.shutdown()
            for process in self.processes:  # vLLM kills those that take more than 5 s, but does not wait for their end
                process.join()
            self.log.close()
            self.run_folder.remove()


async def start(options: EngineOptions) -> Started:
    """Start vLLM. Cancelled, it ends what it has started and raises within two seconds.

    Raises EngineStartFailed with the cause, or ModelNotFound.
    """
    starting = _Start(options)
    try:
        return await asyncio.wrap_future(starting.future)
    except asyncio.CancelledError:
        await asyncio.to_thread(starting.break_off, seconds=1.5)
        raise


class _Start:
    """One start in its thread. Its imports cannot be interrupted, what comes after them can.

    The thread is no daemon: torch's libraries abort a process that ends while they are being imported.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._broken_off = threading.Event()
        self._processes_may_run = threading.Event()
        self._before: set[BaseProcess] = set()
        self.future: Future[Started] = Future()
        self.future.set_running_or_notify_cancel()  # cancelling the wait does not touch it
        self._thread = threading.Thread(target=self._run, name="groundwell-start")
        self._thread.start()

    def break_off(self, *, seconds: float) -> None:
        """End what runs, or keep it from starting; return when it is gone, at the latest after so many seconds."""
        self._broken_off.set()
        if self._processes_may_run.is_set():
            ending = threading.Thread(target=self._end, name="groundwell-end")
            ending.start()
            ending.join(seconds)

    def _run(self) -> None:
        try:
            self.future.set_result(self._started())
        except BaseException as error:
            self.future.set_exception(error)

    def _end(self) -> None:
        while self._thread.is_alive():
            for process in self._processes():
                if process.pid:
                    end_tree(process.pid)
            self._thread.join(0.05)
        if not self.future.exception():  # it had just become ready
            self.future.result().stop()

    def _started(self) -> Started:
        options = self._options
        check_main_module(options)
        folder = resolve(options.model)
        prepare_environment()
        _import_vllm()
        self._refuse_broken_off()
        with STARTING, _environment_kept(METHOD, JOIN, SOCKETS):
            try:
                config = configure(options, folder)
                run_folder = RunFolder()
            except Exception as error:
                raise _failed(options, folder, error, []) from error
            quiet = os.environ["VLLM_LOGGING_LEVEL"].upper() in ("ERROR", "CRITICAL")
            log = EngineLog(run_folder.path, aloud=not quiet)
            try:
                llm = self._vllm(config, run_folder)
                started = Started(llm, folder, parameter_count(folder), self._processes(), log, run_folder)
            except Exception as error:
                log.close()
                run_folder.remove()
                raise _failed(options, folder, error, log.lines) from error
        log.engine_runs()
        return started

    def _vllm(self, config: Any, run_folder: RunFolder) -> Any:
        # On a CPU vLLM has just set it to spawn.
        os.environ[METHOD] = "fork" if self._options.fast_start else os.environ.get(METHOD, "spawn")
        os.environ[JOIN] = f"{os.getpid()}:{run_folder.path}"
        os.environ.setdefault(SOCKETS, str(run_folder.path))
        # vLLM's processes inherit the mask: a Ctrl-C in the terminal is this process's to answer.
        resource_tracker.ensure_running()  # its start would take the mask off
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self._before = set(multiprocessing.active_children())
        self._processes_may_run.set()
        self._refuse_broken_off()
        given = self._options.vllm
        with _garbage_kept_back():
            return _quiet_llm()(
                vllm_config=config,
                executor_class=executor_class(config),
                log_stats=not given.get("disable_log_stats"),
                log_requests=bool(given.get("enable_log_requests")),
            )

    def _refuse_broken_off(self) -> None:
        if self._broken_off.is_set():
            raise EngineStartFailed("the start was broken off")

    def _processes(self) -> set[BaseProcess]:
        """Those of this start."""
        return set(multiprocessing.active_children()) - self._before


def check_main_module(options: EngineOptions) -> None:
    """Raise EngineStartFailed where a spawned process could not import the main program, or would start an engine too.

    `multiprocessing` imports it first, under another name; a notebook has none, a forked process needs none.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        tell_parent(UNGUARDED)
        raise EngineStartFailed(UNGUARDED)
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if not options.fast_start and getattr(main, "__spec__", None) is None and file and not Path(file).exists():
        raise EngineStartFailed(f"vLLM's process cannot import the main program {file}: save it, or set fast_start")


def _import_vllm() -> None:
    """In a thread of its own: some library keeps an exception of its imports, and with it all frames below it.

    They would keep this engine's memory after its end. An import that fails is tried again, and told, by `configure`.
    """
    thread = threading.Thread(target=_try_import, name="groundwell-import")
    thread.start()
    thread.join()


def _try_import() -> None:
    # Not ImportError only: some imports fail otherwise in a process that is about to end.
    with suppress(Exception):
        _ = vllm_names.AsyncEngineArgs, vllm_names.AsyncLLM


def _failed(options: EngineOptions, folder: str, error: Exception, lines: list[str]) -> EngineStartFailed:
    if isinstance(error, OSError) and not Path(folder).is_dir():
        return EngineStartFailed(f"the model {options.model} cannot be loaded: {NOT_HERE}")
    cause = explained(error, lines, on_cpu=vllm_names.current_platform.is_cpu())
    failed = EngineStartFailed(f"vLLM did not start with {options.model}: {cause}")
    if lines:
        failed.add_note("\n".join(["What its processes wrote:", *lines]))
    return failed


@contextmanager
def _garbage_kept_back() -> Iterator[None]:
    """Let no garbage of this process be collected in a forked one.

    There a library waits for ever for its threads, which a fork leaves behind: Chroma's client does when it goes.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _environment_kept(*names: str) -> Iterator[None]:
    """Give variables of the environment their values back at the end."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _quiet_llm() -> Any:
    parent = vllm_names.AsyncLLM
    logging.getLogger(parent.__module__).addFilter(_says_more_than_the_end)

    def __del__(self: Any, _finalizing: Any = sys.is_finalizing) -> None:
        if not _finalizing():  # at interpreter exit the parent's __del__ fails with a TypeError
            parent.__del__(self)

    return type("QuietAsyncLLM", (parent,), {"__del__": __del__})


def _says_more_than_the_end(record: logging.LogRecord) -> bool:
    """Not the traceback that vLLM logs whenever its processes end; `llm.starting.life` says why they died."""
    return not (record.exc_info and issubclass(record.exc_info[0] or Exception, vllm_names.EngineDeadError))
