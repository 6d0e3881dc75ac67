"""The callable whose code changes: which version a call gets, and which version a trial keeps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fxpool.lowering.background.swap import Swap, Trial, Version
from fxpool.torch_compat.dynamo import tracing


class Clock:
    """Time that passes only where a version says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def version(self, name: str, seconds: float, stage: int = 0, warm_up: float = 0.0) -> Version:
        calls = [0]

        def call(x: Any) -> str:
            calls[0] += 1
            self.now += seconds + (warm_up if calls[0] <= 2 else 0.0)
            return name

        return Version(call, stage=stage)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def started(clock: Clock, seconds: float) -> Swap:
    base = clock.version("base", seconds)
    return Swap("graph", base.call, compiled=True)


X, WIDE = torch.zeros(3), torch.zeros(30)


@pytest.mark.parametrize("calls", [1, 5])
def test_a_faster_stage_is_kept_and_a_slower_one_is_not(clock: Clock, calls: int) -> None:
    swap = started(clock, 2.0)
    told: list[tuple[float, float]] = []
    swap.try_out(clock.version("slow", 3.0, 1), calls, lambda *seconds: told.append(seconds))
    swap.try_out(clock.version("fast", 1.0, 2, warm_up=50.0), calls, lambda *seconds: told.append(seconds))
    assert swap.stages == {0: "in use", 1: "measured", 2: "measured"}
    seen = [swap(X) for _ in range(2 * (calls + 2))]
    assert seen == ["slow", "base"] * (calls + 2), "in turn, and a warm-up that does not count"
    assert (told, swap.stages[1], swap.stage) == ([(3.0, 2.0)], "slower", 0)
    assert [swap(X) for _ in range(2 * (calls + 2))] == ["fast", "base"] * (calls + 2)
    assert [swap(X) for _ in range(3)] == ["fast"] * 3
    assert (len(told), swap.stages) == (1, {0: "superseded", 1: "slower", 2: "in use"})
    assert swap.counts() == {
        "eager_calls": 0, "compiled_calls": 4 * (calls + 2) + 3, "swaps": 1, "outside_guards": 0,
    }  # fmt: skip


def test_only_calls_of_one_size_are_timed(clock: Clock) -> None:
    swap = started(clock, 2.0)
    swap.try_out(clock.version("fast", 1.0, 1), 1, lambda *seconds: None)
    assert [swap(X), swap(WIDE), swap(WIDE), swap(X), swap(X), swap(WIDE), swap(X), swap(X), swap(X)] == [
        "fast", "base", "base", "base", "fast", "base", "base", "fast", "base",
    ]  # fmt: skip
    assert [swap(X), swap(WIDE)] == ["fast", "fast"]


def test_where_everything_is_eager_there_is_nothing_to_compare(clock: Clock) -> None:
    swap = Swap("graph", lambda x: "eager")
    assert (swap(X), swap.stage) == ("eager", None)
    swap.try_out(clock.version("first", 9.0), 5, lambda *seconds: pytest.fail("not timed"))
    assert (swap(X), swap.stage, swap.stages) == ("first", 0, {0: "in use"})


def test_threads_share_a_trial(clock: Clock) -> None:
    swap = started(clock, 2.0)
    told: list[tuple[float, float]] = []
    swap.try_out(clock.version("slow", 3.0, 1), 50, lambda *seconds: told.append(seconds))
    seen: list[str] = []

    def call() -> None:
        for _ in range(100):
            seen.append(swap(X))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 800 and set(seen) == {"slow", "base"}
    assert len(told) <= 1 and swap.stages[1] in ("slower", "in use"), "decided, and once"


def guarded(name: str, limit: int, stage: int) -> Version:
    """For inputs of fewer elements than `limit`."""

    class Few(Version):
        def fits(self, args: Any) -> bool:
            return bool(args[0].numel() < limit)

    return Few(lambda x: name, ["guard"], {}, stage)


def test_a_call_outside_a_version_s_guards_takes_the_one_before() -> None:
    swap = Swap("graph", lambda x: "eager")
    swap.use(guarded("first", 10, 0))
    swap.use(guarded("second", 5, 1))
    found = [swap(torch.zeros(n)) for n in (3, 7, 20)]
    assert found == ["second", "first", "eager"]
    assert (swap.counts()["eager_calls"], swap.counts()["outside_guards"], swap.stage) == (1, 1, 1)
    swap.use(Version(lambda x: "third", stage=2))
    assert [swap(torch.zeros(n)) for n in (3, 7, 20)] == ["third"] * 3


def test_a_version_that_does_not_fit_is_not_timed(clock: Clock) -> None:
    trial = Trial(guarded("new", 5, 1), clock.version("old", 1.0), 1, lambda *told: None)
    assert [trial.is_for([torch.zeros(n)]) for n in (9, 3, 9, 3)] == [False, True, False, True]


def test_a_checkpoint_s_recomputation_has_its_forward_s_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    class Frame:
        pass

    now: list[Frame | None] = [Frame()]
    monkeypatch.setattr(tracing, "checkpoint_in_force", lambda: now[0])
    swap = Swap("graph", lambda x: "eager")
    assert swap(X) == "eager"
    swap.use(guarded("compiled", 10, 0))
    assert (swap(X), swap(WIDE)) == ("eager", "eager"), "recomputation"
    now[0] = Frame()
    assert (swap(X), swap(WIDE)) == ("compiled", "eager")
    now[0] = None
    assert swap(X) == "compiled"


def test_a_first_call_settles_it_and_one_with_a_backward_when_the_next_begins() -> None:
    swap = Swap("graph", lambda x: (x * 2,))
    swap(X)
    assert swap.settled.is_set()
    swap = Swap("graph", lambda x: (x * 2, 3))
    swap(X.clone().requires_grad_())
    assert not swap.settled.is_set()
    swap(X)
    assert swap.settled.is_set()

    def fail(x: Any) -> Any:
        raise ValueError("eager's own")

    swap = Swap("graph", fail)
    with pytest.raises(ValueError, match="eager's own"):
        swap(X)
    assert swap.settled.is_set()


@pytest.mark.parametrize("end", [Swap.end, Swap.in_a_fork])
def test_who_waits_is_let_go(end: Callable[[Swap], None]) -> None:
    swap = Swap("graph", lambda x: "eager")
    assert swap.over.is_set()
    swap.begin()
    assert not swap.over.is_set() and swap.state == "pending"
    end(swap)
    assert swap.over.is_set()


def test_a_failure_that_is_to_be_raised_is_raised_at_the_next_call() -> None:
    swap = Swap("graph", lambda x: "eager")
    swap.fail(0, ValueError("no"), raises=False)
    assert swap(X) == "eager"
    swap.fail(1, ValueError("no"), raises=True)
    with pytest.raises(ValueError, match="no"):
        swap(X)
    assert swap.stages == {0: "failed", 1: "failed"}


def test_a_stage_in_use_that_fails_for_other_sizes_stays_in_use() -> None:
    swap = Swap("graph", lambda x: "eager")
    swap.use(guarded("compiled", 10, 0))
    swap.fail(0, ValueError("no"), raises=False)
    assert (swap.stages, swap(X)) == ({0: "in use"}, "compiled")
