"""Progressive modes: a graph gets better code while it runs, and a later process starts with the best there is."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from deadly import deadly

import fxpool
from fxpool.codecache.store import small_records
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import ConfigurationError, UnknownNameError, WorkerDiedError
from fxpool.lowering.artifact import load
from fxpool.lowering.background import compiles
from fxpool.lowering.core import options
from fxpool.results.data import BackgroundGraph

X = torch.randn(6, 8)
# Options that make other code of small graphs, quickly compiled.
PLAIN: dict[str, int] = {}
UNROLLED, SEPARATE = {"unroll_reductions_threshold": 3}, {"max_fusion_size": 1}


pytestmark = pytest.mark.usefixtures("own_background")


@pytest.fixture
def events_of_stages(monkeypatch: pytest.MonkeyPatch) -> dict[int, threading.Event]:
    """A stage of a number in here is loaded when its event is set."""
    events: dict[int, threading.Event] = {}
    original = load.load_aot

    def late(parts: Any, captured: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("late"):
            configuration = captured.request.ambient.configuration["inductor"]
            number = 2 if configuration["max_fusion_size"] == 1 else configuration["unroll_reductions_threshold"] == 3
            if number in events:
                assert events[number].wait(100)
        return original(parts, captured, *args, **kwargs)

    monkeypatch.setattr(load, "load_aot", late)
    return events


def graph(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 1).softmax(-1).sum(0)


def in_stages(function: Any = graph, mode: str = "progressive+async+subprocess", **wanted: Any) -> Any:
    wanted = {"stages": [PLAIN, UNROLLED, SEPARATE], **wanted}
    return torch.compile(function, backend="fxpool", options={"mode": mode, **wanted})


def only(timeout: float = 100) -> BackgroundGraph:
    (found,) = fxpool.wait(timeout)
    return found


def when_in_use(stage: int) -> None:
    while only(0)["stage"] != stage:
        time.sleep(0.01)


def anew() -> None:
    """As another process would begin."""
    fxpool.wait(100)
    torch._dynamo.reset()
    compiles._background().reset()


@pytest.mark.slow
def test_stage_by_stage_behind_an_eager_graph(
    shared_pool: Path, cache: Path, events_of_stages: dict[int, threading.Event]
) -> None:
    events_of_stages.update({0: threading.Event(), 1: threading.Event(), 2: threading.Event()})
    run = in_stages()
    expected = graph(X)
    assert torch.equal(run(X), expected)
    assert (only(0)["stage"], only(0)["stages"]) == (None, dict.fromkeys(range(3), "pending"))
    for number in range(3):
        events_of_stages[number].set()
        when_in_use(number)
        torch.testing.assert_close(run(X), expected)
        found = only(0)
        assert (found["stages"][number], found["swaps"], found["compiled_calls"]) == ("in use", number + 1, number + 1)
    assert only()["stages"] == {0: "superseded", 1: "superseded", 2: "in use"}
    stats = fxpool.stats()
    assert stats["compiles"] == {"worker": 3, "in_process": 0}
    assert (stats["misses"], stats["entries_written"], stats["fallbacks"]) == (1, 3, {})
    assert [(one["outcome"], one["stage"]) for one in stats["graphs"]] == [
        ("async", 0), ("worker", 0), ("worker", 1), ("worker", 2),
    ]  # fmt: skip
    # They are three different compiles.
    assert len({one["key"] for one in stats["graphs"]}) == 3


@pytest.mark.slow
def test_the_first_stage_is_waited_for_without_async(
    shared_pool: Path, cache: Path, events_of_stages: dict[int, threading.Event]
) -> None:
    events_of_stages[1] = threading.Event()
    run = in_stages(mode="progressive+subprocess", stages=[PLAIN, UNROLLED])
    torch.testing.assert_close(run(X), graph(X))
    found = only(0)
    assert (found["stage"], found["stages"]) == (0, {0: "in use", 1: "pending"})
    assert (found["eager_calls"], found["compiled_calls"], found["state"]) == (0, 1, "pending")
    events_of_stages[1].set()
    assert (only()["stage"], only()["state"]) == (1, "ready")
    torch.testing.assert_close(run(X), graph(X))
    assert only()["eager_calls"] == 0


@pytest.mark.slow
def test_a_later_process_starts_at_the_best_stage_that_exists(shared_pool: Path, cache: Path) -> None:
    torch.compile(graph, backend="fxpool", options=dict(UNROLLED))(X)  # the second stage's key, by another way
    anew()
    run = in_stages()
    torch.testing.assert_close(run(X), graph(X))
    found = only()
    assert (found["eager_calls"], found["stages"]) == (0, {1: "superseded", 2: "in use"})
    stats = fxpool.stats()
    assert (stats["hits"], stats["misses"], stats["compiles"]["worker"]) == (1, 1, 2)
    anew()
    torch.testing.assert_close(in_stages()(X), graph(X))
    assert fxpool.wait(0) == [], "the last stage is there: nothing to do behind anybody's back"
    assert (fxpool.stats()["hits"], fxpool.stats()["compiles"]["worker"]) == (2, 2)


@pytest.mark.slow
def test_a_stage_that_came_by_another_way_skips_those_before_it(
    shared_pool: Path, cache: Path, events_of_stages: dict[int, threading.Event]
) -> None:
    events_of_stages[0] = threading.Event()
    run = in_stages()
    run(X)
    torch._dynamo.reset()
    torch.compile(graph, backend="fxpool", options=dict(SEPARATE))(X)  # a process that asks for the last one
    events_of_stages[0].set()
    found = only()
    assert found["stages"] == {0: "superseded", 1: "skipped", 2: "in use"}
    assert fxpool.stats()["compiles"]["worker"] == 2


@pytest.mark.slow
def test_a_stage_that_is_slower_is_not_kept_and_not_compiled_again(
    shared_pool: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    # Which is faster is this machine's business: here the last stage is slow.
    original = load.load_aot

    def slowed(parts: Any, captured: Any, *args: Any, **kwargs: Any) -> Any:
        call = original(parts, captured, *args, **kwargs)
        slow = captured.request.ambient.configuration["inductor"]["max_fusion_size"] == 1

        def timed(*inputs: Any) -> Any:
            now[0] += 2.0 if slow else 1.0
            return call(*inputs)

        return timed

    now = [0.0]
    monkeypatch.setattr(load, "load_aot", slowed)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    wanted: dict[str, Any] = {"stage_calls": 3, "mode": "progressive+subprocess"}
    run = in_stages(**wanted)
    run(X)
    assert only()["stages"] == {0: "in use", 1: "measured", 2: "measured"}
    for _ in range(20):
        torch.testing.assert_close(run(X), graph(X))
    assert only()["stages"] == {0: "superseded", 1: "in use", 2: "slower"}
    keys = [str(one["key"]) for one in fxpool.stats()["graphs"]]
    assert small_records.demoted.find(str(cache), keys[2]) == keys[1]
    anew()
    run = in_stages(**wanted)
    torch.testing.assert_close(run(X), graph(X))
    assert fxpool.wait(0) == []
    assert fxpool.stats()["graphs"][-1]["stage"] == 1
    # As a compile of its own it is as good as ever, and a cleared cache knows nothing of it.
    torch.compile(graph, backend="fxpool", options=dict(SEPARATE))(X)
    assert fxpool.stats()["graphs"][-1]["outcome"] == "hit"
    LocalStore(str(cache)).clear()
    assert small_records.demoted.find(str(cache), keys[2]) is None


@pytest.mark.slow
def test_numbers_are_the_stages_own_where_one_is_left_out(shared_pool: Path, cache: Path) -> None:
    """Stage 1 was slower than 0, and 2 than 1: both are known, and what is served is named rightly."""
    run = in_stages(mode="progressive+subprocess")
    run(X)
    only()
    keys = [str(one["key"]) for one in fxpool.stats()["graphs"]]
    LocalStore(str(cache)).clear()
    small_records.demoted.add(str(cache), keys[1], keys[0])
    anew()
    in_stages(mode="progressive+subprocess")(X)
    assert only()["stages"] == {0: "superseded", 2: "in use"}
    small_records.demoted.add(str(cache), keys[2], keys[1])
    anew()
    in_stages(mode="progressive+subprocess")(X)
    assert fxpool.wait(0) == [] and fxpool.stats()["graphs"][-1]["stage"] == 0


@pytest.mark.slow
def test_a_stage_that_fails_leaves_the_one_before(shared_pool: Path, cache: Path) -> None:
    def fragile(x: torch.Tensor) -> torch.Tensor:
        return deadly(x.sin(), "_exit in stage 1").cos()

    run = in_stages(fragile, stages=[PLAIN, UNROLLED, SEPARATE])
    expected = (X.sin() + 1).cos()
    with pytest.warns(RuntimeWarning, match="stays at its previous stage") as warned:
        run(X)
        found = only()
    assert len(warned) == 1
    assert found["stages"] == {0: "superseded", 1: "failed", 2: "in use"}
    assert found["state"] == "ready" and "code 4" in str(found["error"])
    torch.testing.assert_close(run(X), expected)
    assert fxpool.stats()["fallbacks"] == {"progressive:WorkerDiedError": 1}


@pytest.mark.slow
def test_strict_raises_for_a_stage_that_fails(shared_pool: Path, cache: Path) -> None:
    run = in_stages(lambda x: deadly(x.sin(), "_exit in stage 1").cos(), strict=True)
    run(X)
    assert only()["state"] == "failed"
    with pytest.raises(WorkerDiedError, match="code 4"):
        run(X)


@pytest.mark.slow
def test_training_in_stages(shared_pool: Path, cache: Path, events_of_stages: dict[int, threading.Event]) -> None:
    events_of_stages.update({0: threading.Event(), 1: threading.Event()})
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    run = in_stages(model, stages=[PLAIN, UNROLLED])
    for step in range(6):
        model.zero_grad()
        loss = run(X).square().mean()
        if step in (1, 3):
            events_of_stages[step // 2].set()
            when_in_use(step // 2)
        loss.backward()  # of the version that its forward had
        found = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        model(X).square().mean().backward()
        for one, other in zip(found, model.parameters(), strict=True):
            torch.testing.assert_close(one, other.grad)
    assert (only()["eager_calls"], only()["compiled_calls"]) == (2, 4)


@pytest.mark.slow
def test_other_sizes_stay_right_in_every_stage(shared_pool: Path, cache: Path) -> None:
    run = torch.compile(
        graph,
        backend="fxpool",
        dynamic=True,
        options={"mode": "progressive+async+subprocess", "stages": [PLAIN, UNROLLED]},
    )
    for rows in (5, 3, 64, 128, 1, 7):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(run(x), graph(x))
        fxpool.wait(100)
    assert all(one["state"] == "ready" and one["stage"] == 1 for one in fxpool.wait(0))


@pytest.mark.slow
def test_without_a_cache(shared_pool: Path, cache: Path) -> None:
    run = in_stages(cache=False, stages=[PLAIN, UNROLLED])
    run(X)
    assert only()["stages"] == {0: "superseded", 1: "in use"}
    torch.testing.assert_close(run(X), graph(X))
    assert fxpool.stats()["entries_written"] == 0


@pytest.mark.slow
def test_the_default_stages_end_with_max_autotune(shared_pool: Path, cache: Path) -> None:
    a, b = torch.randn(32, 64), torch.randn(64, 48)
    run = torch.compile(lambda a, b: (a @ b).relu(), backend="fxpool", options={"mode": "progressive+async+subprocess"})
    run(a, b)
    assert only(250)["stages"] == {0: "superseded", 1: "in use"}
    torch.testing.assert_close(run(a, b), (a @ b).relu())
    assert fxpool.stats()["fallbacks"] == {}


# --- what may be asked -------------------------------------------------------------------------------


def test_stages_are_made_of_the_call_s_options_and_their_own() -> None:
    assert options.merged([{}, {"max_autotune": True}], {}) == ({}, {"max_autotune": True})
    assert options.merged(["default", {"max-autotune": True}], {"epilogue_fusion": True}) == (
        {"epilogue_fusion": True},
        {"epilogue_fusion": True, "max_autotune": True},
    )
    assert options.merged([{}, {"max_autotune": True}], {"max_autotune": True}) == ({"max_autotune": True},), "no news"
    assert options.merged(["max-autotune-no-cudagraphs"], {})[0]["max_autotune"] is True


@pytest.mark.parametrize(
    ("wanted", "error", "said"),
    [
        ([{"max_autotoon": True}], UnknownNameError, "max_autotune"),
        (["fastest"], UnknownNameError, "max-autotune"),
        ([{"max_autotune": "yes"}], ConfigurationError, "stage 0"),
        ([], ConfigurationError, "stages"),
        ([3], ConfigurationError, "stages"),
    ],
)
def test_stages_that_can_not_be(wanted: list[Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        options.parse(None, {"mode": "progressive+subprocess", "stages": wanted})


def test_stages_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXPOOL_STAGES", '[{}, {"epilogue_fusion": false}]')
    monkeypatch.setenv("FXPOOL_STAGE_CALLS", "7")
    found = options.parse(None, {"mode": "progressive+async+subprocess"})
    assert (found.mode, found.asynchronous, found.stage_calls) == ("subprocess", True, 7)
    assert found.stages == ({}, {"epilogue_fusion": False})
    other = options.parse(None, {"mode": "async+subprocess"})
    assert (other.stages, other.stage_calls) == ((), 0)
