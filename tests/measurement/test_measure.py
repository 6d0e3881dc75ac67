"""Measuring: real processes, a real pool, real calls. Nothing is asserted of how long anything takes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fxpool
from fxpool.bench.measurement import exclusive, surroundings, timing
from fxpool.errors import MeasurementBusyError
from fxpool.pool.host import measurement_lock

_HOLDER = """
import sys, time
import fxpool
with fxpool.measuring(*sys.argv[1:]):
    print("mine", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    root = tmp_path / "run"
    root.mkdir(mode=0o700)
    monkeypatch.setenv("FXPOOL_RUNTIME_DIR", str(root))
    fxpool.configure(runtime_dir=str(root))
    yield root
    fxpool.close()
    fxpool.configure(runtime_dir=None)
    assert not (root / "measuring").exists(), "a turn is left"


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", _HOLDER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "mine\n"
    yield process
    process.kill()
    process.communicate()


def test_times_come_with_what_they_are_worth() -> None:
    found = fxpool.measure(torch.mm, torch.ones(64, 64), torch.ones(64, 64), seconds=2.0)
    assert len(found.samples) >= 10 and all(sample > 0 for sample in found.samples)
    assert found.low <= found.median <= found.high
    assert found.device == "cpu" and found.copies > 1 and found.calls >= 1 and found.warm_up > 0
    assert found.surroundings and found.surroundings[0].seconds > 0
    assert found.trust == ("doubtful" if found.remarks else "good")
    assert json.loads(json.dumps(found.facts()))["median"] == found.median
    assert re.search(rf"{len(found.samples)} x {found.calls} calls?\b", str(found))


def test_every_call_is_counted() -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(0)
        time.sleep(0.001)

    found = fxpool.measure(call, seconds=0.2, precision=1e-9, warm_up=2)
    assert found.copies == 1
    counted = len(found.samples) * found.calls
    assert counted < len(calls) < counted + 40  # the warm-up, the sample's size, the beginnings of turns
    assert any(
        "the median is known to" in remark and "allow more than seconds=0.2" in remark for remark in found.remarks
    )


def test_what_a_function_raises_comes_out_and_the_turn_is_over() -> None:
    def fails() -> None:
        raise RuntimeError("no such model")

    with pytest.raises(RuntimeError, match="no such model"):
        fxpool.measure(fails)
    done = 0

    def fails_later() -> None:
        nonlocal done
        done += 1
        if done > 20:
            raise RuntimeError("too often")

    with pytest.raises(RuntimeError, match="too often"):
        fxpool.measure(fails_later)


@pytest.mark.parametrize("wrong", [{"seconds": 0}, {"precision": 0}, {"least": 0}, {"warm_up": 0}, {"device": "meta"}])
def test_nonsense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        fxpool.measure(lambda: None, **wrong)  # type: ignore[arg-type]


def test_one_process_after_the_other(holder: subprocess.Popen[str]) -> None:
    with pytest.raises(MeasurementBusyError, match=r"other measurements ran on it for 0\.1 s"):
        fxpool.measure(lambda: None, patience=0.1)
    with pytest.raises(MeasurementBusyError):
        with fxpool.measuring(patience=0.1):
            pytest.fail("two measured at once")
    beside = fxpool.measure(lambda: None, seconds=0.1, alone=False)
    assert beside.remarks[0].startswith("measured beside other processes") and "alone=False" in beside.remarks[0]
    threading.Timer(0.3, holder.kill).start()
    found = fxpool.measure(lambda: None, seconds=0.1, patience=30)
    assert found.waited > 0


def test_threads_take_turns_and_a_block_in_a_block_is_a_part_of_it() -> None:
    order: list[str] = []

    def other() -> None:
        with fxpool.measuring():
            order.append("other")

    with fxpool.measuring() as outer:
        thread = threading.Thread(target=other)
        thread.start()
        with fxpool.measuring("cpu") as inner:
            assert inner is outer
        fxpool.measure(lambda: None, seconds=0.1)
        time.sleep(0.2)
        order.append("mine")
    thread.join(30)
    assert order == ["mine", "other"]


@pytest.mark.slow
def test_a_graph_compiled_meanwhile_is_a_remark(tmp_path: Path) -> None:
    fxpool.configure(cache_dir=str(tmp_path / "cache"), pool="embedded")
    try:
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: (x * 3).sin(), backend="fxpool")
        with fxpool.measuring() as block:
            assert torch.allclose(compiled(torch.ones(5)), (torch.ones(5) * 3).sin())
        assert any("was compiled while this process measured" in remark for remark in block.remarks)
        # Compiling is over when the clock starts.
        found = fxpool.measure(torch.compile(lambda x: (x * 4).sin(), backend="fxpool"), torch.ones(5), seconds=0.3)
        assert not any("was compiled" in remark for remark in found.remarks)
    finally:
        fxpool.close()
        fxpool.configure(cache_dir=None, pool=None)


def test_without_a_directory_one_measures_and_says_so(monkeypatch: pytest.MonkeyPatch, runtime: Path) -> None:
    runtime.chmod(0o777)
    try:
        found = fxpool.measure(lambda: None, seconds=0.1)
    finally:
        runtime.chmod(0o700)
    assert any("other processes may have been measuring" in remark for remark in found.remarks)


def test_copies_are_taken_in_turn() -> None:
    seen: list[int] = []
    x = torch.ones(8, 4).t()
    call, count = timing.rotated(lambda value, other: seen.append(value.data_ptr()), [x, "other"], torch.device("cpu"))
    assert count == 64  # small ones: as many as there may be
    for _ in range(2 * count):
        call()
    assert len(set(seen)) == count and seen[:count] == seen[count:]
    assert seen[0] == x.data_ptr()
    strides = []
    call, _ = timing.rotated(lambda value: strides.append(value.stride()), [x], torch.device("cpu"))
    call()
    call()
    assert strides == [(1, 4), (1, 4)]


def test_what_autograd_made_is_not_copied() -> None:
    x = torch.ones(4, requires_grad=True) * 2
    assert timing.rotated(lambda value: None, [x], torch.device("cpu"))[1] == 1
    assert timing.rotated(lambda: None, [], torch.device("cpu"))[1] == 1
    leaves: list[bool] = []
    leaf = torch.ones(4, requires_grad=True)
    call, count = timing.rotated(
        lambda value: leaves.append(value.requires_grad and value.is_leaf), [leaf], torch.device("cpu")
    )
    assert count > 1
    call()
    call()
    assert leaves == [True, True]


def test_what_others_do_is_seen() -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        with exclusive.beside("cpu") as block:
            time.sleep(1.0)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert block.surroundings is not None and block.surroundings.other_cores > 0.3
    assert any("cores busy" in remark or "virtual machines" in remark for remark in block.remarks)


def test_a_remark_names_the_process_that_disturbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)  # with 64 cores, 1.5 of them are not worth a remark

    def seen(at: float, busy: float, stolen: float, shell: float, compiler: float) -> surroundings.Look:
        processes = {7: ("sh", shell), 8: ("a (compiler)", compiler)}
        return surroundings.Look(at, busy, 0.0, 0.0, None, None, stolen=stolen, processes=processes)

    before = seen(0.0, 0.0, 0.0, 5.0, 5.0)
    remark = (
        "other processes kept 1.5 cores busy, most of them a (compiler) (pid 8): measure when it is idle or has ended"
    )
    assert surroundings.between(before, seen(1.0, 1.5, 0.0, 5.1, 6.0)).remarks() == [remark]
    (several,) = surroundings.between(before, seen(1.0, 1.5, 0.0, 5.7, 5.7)).remarks()
    assert several.startswith("other processes kept 1.5 cores busy together")
    (stolen,) = surroundings.between(before, seen(1.0, 1.5, 1.4, 5.0, 5.1)).remarks()
    assert stolen.startswith("other virtual machines took 1.4 cores")


def test_processes_are_seen_with_their_names() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        name, seconds = surroundings.look().processes[process.pid]
    finally:
        process.kill()
        process.wait()
    assert name and seconds >= 0 and os.getpid() not in surroundings.look().processes


def test_a_clock_that_changes_is_a_remark() -> None:
    before = surroundings.Look(0.0, 0.0, 0.0, 0.0, 3000.0, 50.0, surroundings.GpuLook(1900.0, 40.0, 0))
    after = surroundings.Look(2.0, 1.9, 1.9, 0.0, 2000.0, 60.0, surroundings.GpuLook(1910.0, 70.0, 2))
    found = surroundings.between(before, after)
    assert found.own_cores == 0.95 and found.other_cores == 0.0 and found.gpu_processes == 2
    assert found.remarks() == [
        "the processor's clock went from 3000 to 2000 MHz: let it cool, or fix its clock (cpupower frequency-set)",
        "2 other processes had the GPU open: end those that nvidia-smi lists",
    ]


def test_the_turns_of_tuning_are_these(runtime: Path) -> None:
    """A graph's products are not timed during another measurement."""
    turn = measurement_lock.Turn(runtime, measurement_lock.CPU)
    assert turn.wait(0)
    with pytest.raises(MeasurementBusyError):
        with exclusive.measuring("cpu", patience=0.05, pause=False):
            pytest.fail("measured at once")
    turn.end()
