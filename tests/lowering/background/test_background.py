"""Graphs that run eagerly until a worker has compiled them: exact before, compiled after, and whole in between."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from deadly import deadly
from processes import HERE, run_python
from tiers import first_tier
from torch.utils.checkpoint import checkpoint

import fxpool
from fxpool.codecache.guards import guards
from fxpool.errors import ConfigurationError, JobTimeoutError, QuarantinedError, WorkerDiedError
from fxpool.lowering.artifact import load
from fxpool.lowering.background import compiles
from fxpool.lowering.background.swap import Swap, Version
from fxpool.lowering.core.runtime import runtime
from fxpool.results.data import BackgroundGraph
from fxpool.torch_compat.dynamo import shape_env

ASYNC = {"mode": "async+subprocess"}


pytestmark = pytest.mark.usefixtures("own_background")


@pytest.fixture
def held(own_background: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No graph is loaded before this is set: the moment of the swap is the test's."""
    go = threading.Event()
    original = load.load_aot

    def late(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("late"):
            assert go.wait(100)
        return original(*args, **kwargs)

    monkeypatch.setattr(load, "load_aot", late)
    yield go
    go.set()


def asynchronous(function: Any, **settings: Any) -> Any:
    options = {**ASYNC, **settings.pop("options", {})}
    return torch.compile(function, backend="fxpool", options=options, **settings)


def of(label: str = "") -> BackgroundGraph:
    (found,) = [one for one in fxpool.wait(100) if label in one["label"]]
    return found


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 8))


def train(model: torch.nn.Module, run: Any, steps: int, meanwhile: Any = lambda step: None) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        x = torch.randn(4, 16)
        loss = run(x).square().mean()
        meanwhile(step)  # between forward and backward
        loss.backward()
        if step % 2:  # gradients of two steps are accumulated
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def test_training_is_exactly_eager_before_the_swap_and_compiled_after(
    shared_pool: Path, cache: Path, held: threading.Event
) -> None:
    expected = train(reference := network(), reference, 8)
    model = network()
    run = asynchronous(model)
    assert train(model, run, 8) == expected, "random numbers included"
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(one, other)
    assert fxpool.stats()["background"][0]["state"] == "pending"
    held.set()
    found = of()
    assert (found["state"], found["eager_calls"], found["compiled_calls"]) == ("ready", 8, 0)
    model.eval(), reference.eval()
    again = asynchronous(model)
    x = torch.randn(4, 16)
    fxpool.wait(100)
    torch.testing.assert_close(again(x), reference(x))
    fxpool.wait(100)
    expected_output = reference(x)
    with torch.profiler.profile(acc_events=True) as profile:
        torch.testing.assert_close(again(x), expected_output)
    names = {event.key for event in profile.key_averages()}
    assert "aten::gelu" not in names, "the compiled code has it fused"
    assert fxpool.stats()["compiles"] == {"worker": 2, "in_process": 0}
    assert fxpool.stats()["fallbacks"] == {}


@pytest.mark.slow
def test_a_training_loop_of_gpt2(shared_pool: Path, cache: Path, held: threading.Event) -> None:
    """Losses are eager's to the bit before the swap, and as close as Inductor's after it."""
    from fxpool.bench.suites import transformers

    def losses(model: torch.nn.Module, run: Any, after: Any) -> list[float]:
        torch.manual_seed(1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        found = []
        for step in range(6):
            tokens = torch.randint(0, 1000, (2, 32))
            loss = torch.nn.functional.cross_entropy(run(tokens).logits.flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(float(loss.detach()))
            after(step)
        return found

    def swap(step: int) -> None:
        if step == 2:
            held.set()
            assert [one["state"] for one in fxpool.wait(250)] == ["ready"] * len(fxpool.wait(0))
        if step == 4:
            profile.start()
        if step == 5:
            profile.stop()

    profile = torch.profiler.profile(acc_events=True)
    torch.manual_seed(0)
    reference: Any = transformers.model("gpt2")[0]
    reference.train()
    model = copy.deepcopy(reference)
    expected = losses(reference, reference, lambda step: None)
    found = losses(model, asynchronous(model), swap)
    assert found[:3] == expected[:3]
    torch.testing.assert_close(torch.tensor(found[3:]), torch.tensor(expected[3:]), rtol=1e-4, atol=1e-4)
    names = {event.key for event in profile.key_averages()}
    assert "aten::addmm" in names
    assert not {"aten::tanh", "aten::native_layer_norm"} & names, "the compiled code has them fused"
    graphs = fxpool.wait(0)
    assert graphs and all((one["eager_calls"], one["compiled_calls"]) == (3, 3) for one in graphs)
    assert fxpool.stats()["fallbacks"] == {}


@pytest.mark.slow
def test_a_swap_between_forward_and_backward(shared_pool: Path, cache: Path, held: threading.Event) -> None:
    def swap(step: int) -> None:
        if step == 3:
            held.set()
            assert of()["state"] == "ready"

    model = network().eval()  # without dropout both versions make the same
    expected = train(reference := network().eval(), reference, 8)
    found = train(model, asynchronous(model), 8, swap)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected))
    assert found[:4] == expected[:4]
    assert (of()["eager_calls"], of()["compiled_calls"]) == (4, 4)


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_swap_between_a_checkpoint_and_its_recomputation(
    reentrant: bool, shared_pool: Path, cache: Path, held: threading.Event
) -> None:
    model, reference = network().eval(), network().eval()
    run = asynchronous(model)
    x, y = torch.randn(4, 16, requires_grad=True), None
    y = x.detach().clone().requires_grad_()
    for step in range(3):
        loss = checkpoint(run, x, use_reentrant=reentrant).square().mean()
        if step == 1:
            held.set()
            assert all(one["state"] == "ready" for one in fxpool.wait(100))
        loss.backward()
        checkpoint(reference, y, use_reentrant=reentrant).square().mean().backward()
    torch.testing.assert_close(x.grad, y.grad)
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert sum(one["compiled_calls"] for one in fxpool.wait(0)) >= 1
    assert fxpool.stats()["fallbacks"] == {}


@pytest.mark.slow
def test_a_hit_is_used_at_once_and_a_finished_compile_is_kept(shared_pool: Path, cache: Path) -> None:
    model = network().eval()
    x = torch.randn(4, 16)
    asynchronous(model)(x)
    assert of()["state"] == "ready"
    torch._dynamo.reset()
    torch.testing.assert_close(asynchronous(model)(x), model(x))
    stats = fxpool.stats()
    assert (stats["hits"], stats["entries_written"], stats["graphs"][-1]["outcome"]) == (1, 1, "hit")
    # And by a process that does not compile in the background.
    torch._dynamo.reset()
    torch.compile(model, backend="fxpool")(x)
    assert fxpool.stats()["hits"] == 2


@pytest.mark.slow
def test_eight_threads_see_the_swap_whole(shared_pool: Path, cache: Path, held: threading.Event) -> None:
    model = network().eval()
    run = asynchronous(model)
    inputs = [torch.randn(4, 16) for _ in range(8)]
    with torch.no_grad():
        run(inputs[0])
        expected = [model(x) for x in inputs]
    wrong: list[BaseException] = []
    done = threading.Event()

    def call(number: int) -> None:
        try:
            with torch.no_grad():
                while not done.is_set():
                    torch.testing.assert_close(run(inputs[number]), expected[number])
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    held.set()
    found = fxpool.wait(100)
    time.sleep(0.5)
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert [one["swaps"] for one in found] == [1] * len(found)
    assert sum(one["compiled_calls"] for one in fxpool.wait(0)) > 8


@pytest.mark.slow
def test_sixteen_graphs_at_once(shared_pool: Path, cache: Path) -> None:
    lines = [f"    x = (x * {n + 1}).sin().softmax(-1) + {n}\n    torch._dynamo.graph_break()\n" for n in range(16)]
    space: dict[str, Any] = {"torch": torch}
    exec("def many(x):\n" + "".join(lines) + "    return x\n", space)
    many = space["many"]
    x = torch.randn(4, 8)
    expected = many(x)
    run = asynchronous(many)
    assert torch.equal(run(x), expected)
    found = fxpool.wait(200)
    assert [one["state"] for one in found] == ["ready"] * 16
    torch.testing.assert_close(run(x), expected)
    assert fxpool.stats()["compiles"] == {"worker": 16, "in_process": 0}
    assert [one["compiled_calls"] for one in fxpool.wait(0)] == [1] * 16


# --- failures ----------------------------------------------------------------------------------------

X = torch.randn(6, 8)


def deadly_graph(how: str, **options: Any) -> Any:
    return asynchronous(lambda x: deadly(x.sin(), how).cos(), options=options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "error"),
    [("exit", "SystemExit"), ("kill", "signal 9"), ("hang", "limit of 3 s"), ("segfault", "signal 11")],
)
def test_a_compile_that_fails_leaves_the_graph_eager(shared_pool: Path, cache: Path, how: str, error: str) -> None:
    if how == "hang":
        fxpool.configure(job_timeout=3)
    run = deadly_graph(how)
    expected = (X.sin() + 1).cos()
    with pytest.warns(RuntimeWarning, match="stays eager") as warned:
        assert torch.equal(run(X), expected)
        found = of()
        assert torch.equal(run(X), expected)
        assert torch.equal(run(X), expected)
    assert len([one for one in warned if "stays eager" in str(one.message)]) == 1
    assert error in str(warned[0].message) and error in str(found["error"])
    assert found["state"] == "failed"
    assert (of()["eager_calls"], of()["compiled_calls"]) == (3, 0)
    stats = fxpool.stats()
    assert list(stats["fallbacks"].values()) == [1]
    assert next(iter(stats["fallbacks"])).startswith("async:")
    assert stats["compiles"] == {"worker": 0, "in_process": 0}


@pytest.mark.slow
def test_strict_raises_at_the_next_call(shared_pool: Path, cache: Path) -> None:
    run = deadly_graph("_exit", strict=True)
    assert torch.equal(run(X), (X.sin() + 1).cos())
    of()
    with pytest.raises(WorkerDiedError, match="code 4"):
        run(X)
    # In quarantine: the next compile is told at once.
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        deadly_graph("_exit", strict=True)(X)
    assert isinstance(caught.value.inner_exception, QuarantinedError)


@pytest.mark.slow
def test_waiting_has_an_end(shared_pool: Path, cache: Path) -> None:
    fxpool.configure(job_timeout=5)
    run = deadly_graph("hang", strict=True)
    run(X)
    assert "pending" in [one["state"] for one in fxpool.wait(0.2)]
    assert [one["state"] for one in fxpool.wait(60) if "limit of 5 s" in (one["error"] or "")] == ["failed"]
    with pytest.raises(JobTimeoutError):
        run(X)


@pytest.mark.parametrize("mode", ["async+normal", "async+serialize", "progressive+async+normal"])
def test_modes_that_make_no_sense(mode: str) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        torch.compile(lambda x: x + 1, backend="fxpool", options={"mode": mode})(X)
    assert isinstance(caught.value.inner_exception, ConfigurationError)
    assert "async+subprocess" in str(caught.value)


# --- what the compile guards on ----------------------------------------------------------------------


@pytest.mark.slow
def test_other_sizes_stay_right(shared_pool: Path, cache: Path) -> None:
    def total(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y).softmax(-1).sum(0)

    run = asynchronous(total, dynamic=True)
    for rows in (5, 3, 64, 128, 1, 7):
        x, y = torch.randn(rows, 6), torch.randn(6, rows + 2)
        torch.testing.assert_close(run(x, y), total(x, y))
        fxpool.wait(100)
    assert fxpool.stats()["fallbacks"] == {}
    assert sum(one["compiled_calls"] for one in fxpool.wait(0)) >= 3


@pytest.mark.slow
def test_a_call_outside_the_guards_is_eager_and_has_code_of_its_own_compiled(shared_pool: Path, cache: Path) -> None:
    """Inductor guards on the length of a reduction (4096), which Dynamo does not learn of any more."""

    def total(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, x.shape[-1:]).softmax(-1).sum(0)

    def check(rows: int, columns: int) -> BackgroundGraph:
        x = torch.randn(rows, columns)
        torch.testing.assert_close(run(x), total(x), rtol=1e-4, atol=1e-4)
        return fxpool.wait(100)[0]

    run = asynchronous(total, dynamic=True)
    check(4, 100)
    found = check(6, 200)
    assert (found["eager_calls"], found["compiled_calls"], found["outside_guards"]) == (1, 1, 0)
    found = check(4, 5000)
    assert (found["eager_calls"], found["outside_guards"], found["swaps"], found["state"]) == (2, 1, 2, "ready")
    for rows, columns in ((4, 6000), (4, 100), (3, 5000), (6, 200)):
        found = check(rows, columns)
    assert (found["eager_calls"], found["compiled_calls"], found["outside_guards"]) == (2, 5, 1)
    stats = fxpool.stats()
    assert (stats["compiles"]["worker"], stats["entries_written"], stats["fallbacks"]) == (2, 2, {})
    # And another process finds both.
    torch._dynamo.reset()
    compiles._background().reset()
    run = asynchronous(total, dynamic=True)
    x = torch.randn(4, 5000)
    torch.testing.assert_close(run(x), total(x), rtol=1e-4, atol=1e-4)
    assert (fxpool.stats()["hits"], fxpool.wait(0)) == (1, [])


def test_a_call_outside_the_guards_stays_eager() -> None:
    """The predicate is checked at each call, on sizes where the call has them."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    env = ShapeEnv()
    fake = FakeTensorMode(shape_env=env).from_tensor(
        torch.empty(6, 8),
        symbolic_context=StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC]),
    )
    (name,) = [symbol.name for symbol in fake.shape[0].node.expr.free_symbols]
    small = guards.encode(fake.shape[0].node.expr < 10)
    swap = Swap("graph", lambda x: "eager")
    swap.use(Version(lambda x: "compiled", [small], shape_env.places([fake])))
    assert shape_env.places([fake]).keys() == {name}
    assert [swap(torch.empty(rows, 8)) for rows in (6, 9, 10, 9, 12)] == [
        "compiled", "compiled", "eager", "compiled", "eager",
    ]  # fmt: skip
    assert swap.counts() == {"eager_calls": 2, "compiled_calls": 3, "swaps": 1, "outside_guards": 2}
    swap = Swap("graph", lambda x: "eager")
    swap.use(Version(lambda x: "compiled", [small], {}))
    assert swap(torch.empty(6, 8)) == "eager", "a guard that can't be evaluated does not hold"


def test_inputs_that_begin_to_overlap_stay_eager(shared_pool: Path, cache: Path) -> None:
    def shift(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y.sin()

    run = asynchronous(shift)

    def check(x: torch.Tensor, y: torch.Tensor) -> None:
        base = x._base if x._base is not None else None
        copy = base.clone() if base is not None else None
        again = (copy[:6], copy[3:9]) if copy is not None else (x.clone(), y.clone())
        torch.testing.assert_close(run(x, y), shift(*again))
        torch.testing.assert_close(x, again[0])

    check(torch.randn(6), torch.randn(6))
    fxpool.wait(100)
    check(torch.randn(6), torch.randn(6))
    shared = torch.randn(9)
    check(shared[:6], shared[3:9])
    fxpool.wait(100)
    shared = torch.randn(9)
    check(shared[:6], shared[3:9])
    check(torch.randn(6), torch.randn(6))


# --- the process -------------------------------------------------------------------------------------

PROGRAM = """
import sys, time
sys.path.insert(0, sys.argv[1])
import torch, fxpool
from deadly import deadly
x = torch.ones(6, 8)
torch.compile(lambda x: deadly(x.sin(), "hang").cos(), backend="fxpool")(x)
deadline = time.monotonic() + 60
from fxpool.lowering.core.runtime import runtime
while not runtime.pool().status().get("running") and time.monotonic() < deadline:
    time.sleep(0.05)
print([one["state"] for one in fxpool.wait(0)], flush=True)
import atexit
atexit.register(lambda: print(round(time.monotonic(), 3), flush=True))
"""


ENDS = """
import sys, time
import torch
x = torch.ones(6, 8)
torch.compile(lambda x: (x @ x.T).softmax(-1).sin(), backend="fxpool")(x)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("later", first_tier(["0", "0.02", "0.1", "0.5", "2"], "0.02", "0.5"))
def test_a_program_ends_well_whatever_is_under_way(later: str, shared_pool: Path, cache: Path) -> None:
    """Threads must be gone when the interpreter is: some of them abort the process (seen: signal 6)."""
    run_python(["-c", ENDS, later], TORCHINDUCTOR_FX_COMPILE_MODE="progressive+async+subprocess")


@pytest.mark.slow
def test_exit_with_a_compile_under_way_is_prompt_and_ends_it(shared_pool: Path, cache: Path) -> None:
    started = time.monotonic()
    printed = run_python(["-c", PROGRAM, str(HERE)], 100, TORCHINDUCTOR_FX_COMPILE_MODE="async+subprocess").split("\n")
    assert printed[0] == "['pending']"
    assert time.monotonic() - started < 90, "it waited for the job"
    pool = runtime.pool()
    pool.start(wait=True)

    def running() -> list[str]:
        # The host is prepared for any later process.
        return [label for row in pool.status()["running"] if (label := row["label"]) != "this host's toolchain"]

    deadline = time.monotonic() + 20
    while running() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running() == [], "the job outlived its program"
