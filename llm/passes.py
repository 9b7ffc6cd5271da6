"""What embedder and reranker share: weights that the machine is fast with, and forward passes that callers share."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from llm.models import NOT_HERE, ModelNotFound, has_fast_bfloat16, resolve

if TYPE_CHECKING:
    import torch

Model = TypeVar("Model")
Row = TypeVar("Row")
Result = TypeVar("Result")
Answer = TypeVar("Answer")

PASS_TOKENS = 256
"""What a forward pass costs beside its tokens, in tokens: the weights are read once, and each kernel starts once.

Seen with MiniLM on two cores: about 60 in float32, 250 in bfloat16 with AMX; float32 is as fast with any of 32 to 256.
"""
SHARED_ROWS = 64
"""Calls are let into a shared pass until it has so many rows, so that nobody waits for a crowd."""


def load(model_class: Callable[..., Model], name: str, device: str) -> Model:
    """A sentence-transformers model in the weights that the device is fast with. Raises ModelNotFound."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        return model_class(resolve(name), device=device, model_kwargs={"dtype": weight_type(device)})
    except OSError as error:
        raise ModelNotFound(f"the model {name} cannot be loaded: {NOT_HERE}") from error


def weight_type(device: str) -> "torch.dtype":
    """bfloat16 where the device multiplies it, else float32."""
    import torch

    if device == "cpu":
        fast = has_fast_bfloat16()
    else:
        fast = device.startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if fast else torch.float32


def batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """The numbers of rows, by their lengths in tokens, in batches for one forward pass each, the longest first.

    A batch's rows times its longest are `budget` tokens at most (a longer row goes alone), of them PASS_TOKENS padding
    at most: where padding costs as much as another pass, the two together cost least.
    """
    found: list[list[int]] = []
    room = padding = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        padding += lengths[found[-1][0]] - lengths[row] if found else 0
        if room < 1 or padding > PASS_TOKENS:
            found.append([])
            room, padding = budget // max(1, lengths[row]), 0
        found[-1].append(row)
        room -= 1
    return found


class _Call(NamedTuple, Generic[Row, Result]):
    rows: list[Row]
    answer: "Future[list[Result]]"


class Passes(Generic[Row, Result]):
    """One thread for a model's forward passes. Calls that come while it is busy wait, and share the next pass.

    One thread, since two passes of several threads each are slower on the same cores than one after the other, and
    since OpenMP keeps a team for each thread that it was called from. A lone call is not kept waiting for others.
    The thread starts with the first call and ends with this object.
    """

    def __init__(self, run: Callable[[list[Row]], Sequence[Result]], name: str) -> None:
        """`run` gives a result for each row; where it raises, each call is run again alone and has its own error."""
        self._run = run
        self._waiting: deque[_Call[Row, Result]] = deque()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def share(self, rows: list[Row]) -> "Future[list[Result]]":
        """The rows' results, of a pass shared with other calls; nothing is run once the future is cancelled."""
        call = _Call[Row, Result](rows, Future())
        self._waiting.append(call)
        self._thread.submit(self._serve)
        return call.answer

    def alone(self, function: Callable[..., Answer], *arguments: Any) -> "Future[Answer]":
        """Run a function in its turn on the thread, after the calls that wait."""
        return self._thread.submit(function, *arguments)

    def _serve(self) -> None:
        calls: list[_Call[Row, Result]] = []
        while self._waiting and sum(len(call.rows) for call in calls) < SHARED_ROWS:
            call = self._waiting.popleft()
            if call.answer.set_running_or_notify_cancel():
                calls.append(call)
        if calls:
            self._answer(calls)

    def _answer(self, calls: list[_Call[Row, Result]]) -> None:
        try:
            results = list(self._run([row for call in calls for row in call.rows]))
        except Exception as error:
            if len(calls) == 1:
                return calls[0].answer.set_exception(error)
            for call in calls:
                self._answer([call])
            return None
        for call in calls:
            call.answer.set_result(results[: len(call.rows)])
            del results[: len(call.rows)]
        return None


class Cores:
    """Threads that each run passes on a core of their own, or one thread whose passes run on all cores."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = threading.Semaphore(count)
        self._pool = ThreadPoolExecutor(count, "embedder-core", initializer=self._keep_to_one if count > 1 else None)
        if count > 1:
            self._start()

    def begin(self, function: Callable[..., Answer], *arguments: Any) -> "Future[Answer]":
        """Block until a thread is free, and run a function on it."""
        self._free.acquire()
        running = self._pool.submit(function, *arguments)
        running.add_done_callback(lambda _: self._free.release())
        return running

    def _start(self) -> None:
        """All threads now: each sets torch's number of threads, which those that are made after it would take over."""
        import torch

        threads = torch.get_num_threads()
        everybody = threading.Barrier(self.count)
        list(self._pool.map(lambda _: everybody.wait(), range(self.count)))
        torch.set_num_threads(threads)

    @staticmethod
    def _keep_to_one() -> None:
        import torch

        torch.get_num_threads()  # the first question takes over the process's number, which would undo the next line
        torch.set_num_threads(1)


def result_of(future: "Future[Answer]") -> Answer:
    """Block until the result is there; when the wait is broken off, what has not begun is not run."""
    try:
        return future.result()
    finally:
        future.cancel()  # no effect on a finished one
