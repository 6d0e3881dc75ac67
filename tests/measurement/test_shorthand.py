"""Torch's benchmark functions under fxpool's own names. Nothing is asserted of how long anything takes."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import fxpool
from fxpool.bench.measurement import clocks


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path) -> Iterator[None]:
    root = tmp_path / "run"
    root.mkdir(mode=0o700)
    fxpool.configure(runtime_dir=str(root))
    yield
    fxpool.close()
    fxpool.configure(runtime_dir=None)


def test_a_call_is_timed_as_it_is() -> None:
    made: list[int] = []
    found = fxpool.do_bench(lambda: made.append(torch.ones(32, 32).numel()), device="cpu", seconds=0.3)
    assert found.copies == 1 and found.device == "cpu" and found.timer == "clock"
    assert 0 < found.low <= found.median <= found.high
    assert len(made) >= len(found.samples) * found.calls


def test_the_profiler_leaves_out_what_is_no_operator() -> None:
    def sleepy(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        return x @ x

    x = torch.ones(16, 16)
    whole = fxpool.do_bench(lambda: sleepy(x), device="cpu", seconds=0.3)
    within = fxpool.do_bench(lambda: sleepy(x), device="cpu", seconds=0.3, timer="profiler")
    assert within.timer == within.facts()["timer"] == "profiler"
    assert 0 < within.median < 0.002 <= whole.median, "what the machine does beside cannot make a sleep shorter"


def test_the_profiler_counts_what_an_operator_calls_once() -> None:
    x = torch.ones(256, 256)

    class Event:
        def __init__(self, name: str, parent: object, microseconds: float) -> None:
            self.name, self.cpu_parent, self.cpu_time_total = name, parent, microseconds

    outer = Event("aten::linear", None, 5.0)
    assert clocks._operator_time(outer) == 5.0
    assert clocks._operator_time(Event("aten::addmm", outer, 4.0)) is None
    assert clocks.ProfilerClock(torch.device("cpu")).seconds(lambda: torch.nn.functional.linear(x, x), 3) > 0


def test_the_profiler_says_no_more_than_the_clock() -> None:
    """Recording an operator of 2 us costs more than that, and starting the profiler twenty times as much."""
    x = torch.ones(16, 16)
    calls: list[int] = []

    def call() -> None:
        calls.append(0)
        x @ x

    timer = clocks.ProfilerClock(torch.device("cpu"))
    count = clocks.calls_per_sample(timer, call)
    assert 10 <= count <= 100
    clocked: list[float] = []
    seconds = timer.clock.seconds

    def noted(call: Callable[[], object], count: int) -> float:
        clocked.append(seconds(call, count))
        return clocked[-1]

    timer.clock.seconds = noted  # type: ignore[method-assign]
    timer.sessions = timer.capped = 0
    taken = [timer.seconds(call, count) for _ in range(5)]
    assert timer.sessions == 5 and all(one <= clock for one, clock in zip(taken, clocked[1::2], strict=True))
    assert timer.capped > 0, "records of operators this short cost nothing?"
    found = fxpool.do_bench(call, device="cpu", seconds=0.3, timer="profiler")
    assert found.calls >= 10
    assert any("use timer='clock'" in remark for remark in found.remarks)


def test_a_function_without_operators_has_nothing_to_count() -> None:
    with pytest.raises(RuntimeError, match="saw no operator"):
        fxpool.measure(lambda: None, seconds=0.2, timer="profiler")


def test_another_timer_is_refused() -> None:
    with pytest.raises(ValueError, match="must be 'clock' or 'profiler'"):
        fxpool.measure(torch.ones, 2, timer="sundial")  # type: ignore[arg-type]


def test_calls_are_timed_together() -> None:
    made: list[int] = []

    def call(number: int) -> None:
        made.append(number)
        time.sleep(0.001)

    seconds = fxpool.timed(call, 7, calls=3)
    assert made == [7, 7, 7] and seconds >= 0.003
    with pytest.raises(ValueError, match="got 0"):
        fxpool.timed(made.append, 1, calls=0)


def test_a_line_says_what_was_measured() -> None:
    line = io.StringIO()
    found = fxpool.print_performance(torch.sin, torch.ones(8), label="sine", to=line, seconds=0.2)
    assert line.getvalue() == f"sine: {found}\n"
