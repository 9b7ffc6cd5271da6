import asyncio
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llm.models import ModelNotFound
from llm.passes import PASS_TOKENS, SHARED_ROWS, Cores, Passes, batches, load, result_of, weight_type


@given(st.lists(st.integers(0, 600), max_size=60), st.integers(1, 5000))
@example([0, 0], 1)
@example([4096, 4097, 1], 4096)
def test_each_row_is_in_one_batch_within_budget_and_padding(lengths: list[int], budget: int) -> None:
    found = batches(lengths, budget)
    assert sorted(row for rows in found for row in rows) == list(range(len(lengths)))
    for rows in found:
        longest = max(lengths[row] for row in rows)
        assert len(rows) * longest <= budget or len(rows) == 1
        assert sum(longest - lengths[row] for row in rows) <= PASS_TOKENS
    longest_of = [max(lengths[row] for row in rows) for rows in found]
    assert longest_of == sorted(longest_of, reverse=True)


def test_batches_are_as_full_as_they_may_be() -> None:
    assert [len(rows) for rows in batches([64] * 100, 4096)] == [64, 36]
    assert batches([10, 300, 10, 301], 4096) == [[3, 1], [0, 2]]


class Doubling:
    """What stands for the model: doubles numbers, fails on None, and waits at a gate; notes what each pass holds."""

    def __init__(self) -> None:
        self.ran: list[list[int | None]] = []
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()

    def __call__(self, rows: list[int | None]) -> list[int]:
        self.ran.append(rows)
        self.entered.set()
        assert self.gate.wait(10)
        return [2 * row for row in rows]  # type: ignore[operator]


@pytest.fixture
def model() -> Iterator[Doubling]:
    model = Doubling()
    yield model
    model.gate.set()


@pytest.fixture
def passes(model: Doubling) -> Passes[int | None, int]:
    return Passes(model, "doubling")


@pytest.fixture
def busy(model: Doubling, passes: Passes[int | None, int]) -> "Future[list[int]]":
    """A first call, whose pass runs until the gate is opened."""
    model.gate.clear()
    first = passes.share([0])
    assert model.entered.wait(10)
    return first


def test_a_lone_call_is_run_at_once(model: Doubling, passes: Passes[int | None, int]) -> None:
    assert result_of(passes.share([1, 2])) == [2, 4]
    assert model.ran == [[1, 2]]


def test_calls_that_come_while_it_is_busy_share_one_pass(model: Doubling, passes, busy) -> None:
    calls = [passes.share([number, -number]) for number in range(1, 6)]
    model.gate.set()
    assert [result_of(call) for call in calls] == [[2 * n, -2 * n] for n in range(1, 6)]
    assert model.ran == [[0], [1, -1, 2, -2, 3, -3, 4, -4, 5, -5]]


def test_a_crowd_is_not_let_into_one_pass(model: Doubling, passes, busy) -> None:
    calls = [passes.share([1] * 10) for _ in range(20)]
    model.gate.set()
    for call in calls:
        assert result_of(call) == [2] * 10
    assert [len(rows) for rows in model.ran[1:]] == [70, 70, 60]
    assert all(len(rows) - 10 < SHARED_ROWS for rows in model.ran)


def test_a_failing_call_fails_alone(model: Doubling, passes, busy) -> None:
    good, bad, other = passes.share([1]), passes.share([2, None]), passes.share([3])
    model.gate.set()
    assert (result_of(good), result_of(other)) == ([2], [6])
    with pytest.raises(TypeError, match="unsupported operand"):
        result_of(bad)
    assert model.ran[1:] == [[1, 2, None, 3], [1], [2, None], [3]]


def test_the_thread_outlives_a_failure(passes: Passes[int | None, int]) -> None:
    with pytest.raises(TypeError):
        result_of(passes.share([None]))
    assert result_of(passes.share([4])) == [8]


def test_a_cancelled_call_is_left_out_and_the_others_are_not(model: Doubling, passes, busy) -> None:
    calls = [passes.share([number]) for number in range(3)]
    assert calls[1].cancel()
    model.gate.set()
    assert (result_of(calls[0]), result_of(calls[2])) == ([0], [4])
    assert model.ran[1:] == [[0, 2]]
    with pytest.raises(CancelledError):
        calls[1].result()


def test_nothing_is_run_when_all_who_waited_have_gone(model: Doubling, passes, busy) -> None:
    for call in [passes.share([number]) for number in range(3)]:
        call.cancel()
    model.gate.set()
    assert result_of(passes.alone(len, "abc")) == 3
    assert model.ran == [[0]]


def test_a_pass_that_runs_cannot_be_cancelled(model: Doubling, busy) -> None:
    assert not busy.cancel()
    model.gate.set()
    assert result_of(busy) == [0]


def test_what_runs_alone_has_its_turn_after_those_who_wait(model: Doubling, passes, busy) -> None:
    order: list[str] = []
    waiting = passes.share([1])
    waiting.add_done_callback(lambda _: order.append("shared"))
    turn = passes.alone(order.append, "alone")
    model.gate.set()
    result_of(turn)
    assert order == ["shared", "alone"]


def test_a_broken_off_wait_takes_the_call_back() -> None:
    class Interrupted(Future):
        def result(self, timeout: float | None = None) -> None:
            raise KeyboardInterrupt

    future = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        result_of(future)
    assert future.cancelled()


def test_its_thread_starts_with_the_first_call_and_ends_with_it() -> None:
    before = set(threading.enumerate())
    passes = Passes(list, "short-lived")
    assert set(threading.enumerate()) == before
    result_of(passes.share([1]))
    (thread,) = set(threading.enumerate()) - before
    assert thread.name.startswith("short-lived")
    del passes
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_two_event_loops_may_share_it(passes: Passes[int | None, int]) -> None:
    async def ask(number: int) -> list[int]:
        return await asyncio.wrap_future(passes.share([number]))

    assert [asyncio.run(ask(number)) for number in (1, 2)] == [[2], [4]]


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx512_f": True, "avx512_bf16": False, "amx_bf16": False}, "float32"),
        ({"avx512_f": True, "avx512_bf16": True, "amx_bf16": False}, "bfloat16"),
        ({"avx512_f": True, "avx512_bf16": False, "amx_bf16": True}, "bfloat16"),
        ({"architecture": "aarch64"}, "float32"),
    ],
)
def test_weights_are_bfloat16_only_where_the_processor_multiplies_it(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, object], expected: str
) -> None:
    import torch

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert weight_type("cpu") == getattr(torch, expected)


@pytest.mark.parametrize("fast", [True, False])
def test_weights_on_a_gpu_are_bfloat16_where_it_has_it(monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: fast and not including_emulation)
    assert weight_type("cuda:1") == (torch.bfloat16 if fast else torch.float32)


def test_a_model_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str, **options: object) -> None:
        raise OSError("not in the cache")

    with pytest.raises(ModelNotFound, match=r"nobody/nothing cannot be loaded: .*HF_HUB_OFFLINE"):
        load(absent, "nobody/nothing", "cpu")


def test_each_of_several_threads_keeps_to_a_core_and_nobody_elses_changes() -> None:
    torch = pytest.importorskip("torch")
    before, together = torch.get_num_threads(), threading.Barrier(2)

    def threads() -> int:
        together.wait(10)
        torch.ones(2**17).sum()  # the first parallel work is where torch sets a thread up
        return torch.get_num_threads()

    cores = Cores(2)
    assert [result_of(one) for one in [cores.begin(threads), cores.begin(threads)]] == [1, 1]
    assert torch.get_num_threads() == before
    assert result_of(Cores(1).begin(torch.get_num_threads)) == before


def test_a_pass_begins_as_soon_as_any_core_is_free(model: Doubling) -> None:
    cores = Cores(2)
    model.gate.clear()
    slow, quick = cores.begin(model, [1]), cores.begin(int)
    assert result_of(quick) == 0
    assert [result_of(cores.begin(lambda number: number, number)) for number in range(3)] == [0, 1, 2]
    assert not slow.done()
    model.gate.set()
    assert result_of(slow) == [2]


def test_a_pass_that_fails_frees_its_core() -> None:
    cores = Cores(1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            result_of(cores.begin(lambda: 1 / 0))
