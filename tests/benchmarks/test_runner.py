"""Suites that run: real processes that crash, hang and eat memory, and are killed at any moment."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from fxpool.bench import bystanders, results, runner, suite
from fxpool.bench.case import Run, runs
from fxpool.bench.results import Record

_SUITE = """
import os, pathlib, subprocess, sys, time
from fxpool.bench.case import Case

def model(width=16):
    import torch
    return torch.nn.Linear(width, width), (torch.randn(4, width),)

def crashes():
    os.kill(os.getpid(), 11)

def fails():
    print("said before it failed")
    raise ValueError("no such model")

def hangs():
    time.sleep(600)

def eats():
    held = [bytearray(64 << 20) for _ in range(40)]
    time.sleep(600)

def is_wrong():
    import torch
    calls = []
    def function(x):
        calls.append(0)
        return x * len(calls)
    return function, (torch.ones(4),)

def busy():
    # Beside a process of its own in another session, as Inductor's workers are.
    subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    BUSY.touch()
    while True:
        pass

BUSY = pathlib.Path(__file__).with_name("busy")

def after_busy():
    while not BUSY.exists():
        time.sleep(0.01)
    return model()

def slow_call():
    calls = []
    def function():
        if not calls:
            end = time.monotonic() + 25
            while time.monotonic() < end:
                time.sleep(0.1)
        calls.append(0)
    return function, ()

TIMEOUT = float(os.environ.get("TIMEOUT_OF_HANGS", 3.0))
QUICK = {"seconds": 0.2, "precision": 0.5, "backends": ("eager",)}
CASES = [
    Case("model", model, **QUICK),
    Case("trained", model, **{**QUICK, "modes": ("training",)}),
    Case("crashes", crashes, **QUICK),
    Case("slow call", slow_call, **QUICK),
    Case("fails", fails, **QUICK),
    Case("hangs", hangs, **{**QUICK, "timeout": TIMEOUT}),
    Case("eats", eats, **{**QUICK, "memory": 500 << 20}),
    Case("wrong", is_wrong, **{**QUICK, "backends": ("aot_eager",)}),
    Case("after busy", after_busy, **{**QUICK, "seconds": 1.0, "precision": 1e-9}),
    Case("busy", busy, **{**QUICK, "timeout": 30.0}),
]
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[suite.Suite]:
    path = tmp_path / "mine.py"
    path.write_text(_SUITE)
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    monkeypatch.setenv("FXPOOL_RUNTIME_DIR", str(run))
    yield suite.load(str(path))
    left = [process for process in psutil.process_iter() if _has(process, str(tmp_path))]
    assert not left, f"left: {left}"


def _has(process: psutil.Process, text: str) -> bool:
    try:
        return process.environ().get("FXPOOL_RUNTIME_DIR", "").startswith(text) and process.pid != os.getpid()
    except psutil.Error:
        return False


def run_all(mine: suite.Suite, *names: str, jobs: int) -> dict[str, Record]:
    found: dict[str, Record] = {}
    wanted = [run for run in runs(mine.cases) if run.case in names]

    def add(record: Record) -> None:
        found[record.run.case] = record

    asyncio.run(runner.Runner(mine, wanted, runner.Settings(jobs=jobs), add).run())
    return found


@pytest.mark.slow
def test_one_that_fails_costs_itself_only(mine: suite.Suite) -> None:
    found = run_all(mine, "model", "trained", "crashes", "fails", "wrong", jobs=3)
    assert {name: one.state for name, one in found.items()} == {
        "model": "done", "trained": "done", "crashes": "killed", "fails": "failed", "wrong": "wrong",
    }  # fmt: skip
    for name in ("model", "trained"):
        one = found[name]
        assert one.median and one.measured is not None and one.measured["samples"]
        assert one.first_call and one.peak and one.phases.keys() >= {"building", "compiling", "measuring"}
    assert "SIGSEGV" in found["crashes"].reason and "building" in found["crashes"].reason
    assert "ValueError: no such model" in found["fails"].reason and "said before it failed" in found["fails"].reason
    assert found["wrong"].difference and found["wrong"].difference > 0.1


@pytest.mark.slow
def test_a_first_call_says_what_ran_beside_it(mine: suite.Suite) -> None:
    found = run_all(mine, "slow call", "model", jobs=2)
    slow = found["slow call"]
    assert slow.beside and slow.beside[0].startswith("model/inference/eager ran: --jobs 1")
    assert slow.first_call and slow.first_call >= 20, "it went on while the other was starting"
    assert slow.first_call < slow.phases["compiling"] + 1, "seconds in which it was stopped count"
    alone = run_all(mine, "slow call", jobs=1)["slow call"].beside
    assert alone is not None and not any("--jobs 1" in text for text in alone)


@pytest.mark.slow
def test_one_that_hangs_or_eats_is_ended(mine: suite.Suite) -> None:
    found = run_all(mine, "hangs", "eats", "model", jobs=3)
    assert {name: one.state for name, one in found.items()} == {"hangs": "timeout", "eats": "memory", "model": "done"}
    assert "longer than 3 s (while building" in found["hangs"].reason
    assert "MB of 500 (while building" in found["eats"].reason


@pytest.mark.slow
def test_a_second_process_tells_what_a_first_call_takes_there(mine: suite.Suite) -> None:
    wanted = list(runs([mine.case("model"), mine.case("wrong")], backends=["eager", "aot_eager"]))
    found: dict[str, Record] = {}
    settings = runner.Settings(jobs=2, warm=True)
    asyncio.run(runner.Runner(mine, wanted, settings, lambda one: found.update({one.run.id: one})).run())
    second = found["model/inference/aot_eager"]
    assert second.warm_call and second.first_call and second.median, "both, and the times of the first"
    assert found["model/inference/eager"].warm_call is None, "it compiles nothing"
    assert found["wrong/inference/aot_eager"].state == "wrong" and found["wrong/inference/aot_eager"].warm_call is None


def _states(mine: suite.Suite, names: tuple[str, ...]) -> tuple[list[str], int]:
    """The states of the processes that are reported as paused while one measures, and their number."""
    seen: list[str] = []
    most = 0
    wanted = [run for run in runs(mine.cases) if run.case in names]

    def look() -> None:
        nonlocal most
        for live in active.live:
            since = live.stopped_since
            if since is not None and time.monotonic() - since > 0.1:  # a signal takes a moment
                measures = live in active._measuring
                tree = bystanders.tree(live.process.pid)
                states = [one.status() for one in tree]
                if live.stopped_since == since:  # until they had been looked at
                    assert not measures
                    most = max(most, len(tree))
                    seen.extend(states)

    active = runner.Runner(mine, wanted, runner.Settings(jobs=4), lambda one: None, look)

    async def until_measured() -> None:
        task = asyncio.create_task(active.run())
        while not task.done() and not (seen and not active._measuring):
            await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(until_measured())
    return seen, most


@pytest.mark.slow
def test_while_one_measures_the_others_stand_still(mine: suite.Suite) -> None:
    seen, most = _states(mine, ("busy", "after busy"))
    assert most >= 2, "what it started was not looked at"
    assert set(seen) <= {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}


@pytest.mark.slow
@pytest.mark.parametrize("later", range(4))
def test_a_runner_that_is_cancelled_while_a_result_comes_ends(
    mine: suite.Suite, later: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`later`: turns of the event loop between the two, as they come apart by chance."""
    monkeypatch.setenv("TIMEOUT_OF_HANGS", "600")
    mine = suite.load(str(mine.path))
    wanted = [run for run in runs(mine.cases) if run.case in ("fails", "hangs")]

    async def until_cancelled() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def soon(left: int) -> None:
            loop.call_soon(soon, left - 1) if left else task.cancel()

        await runner.Runner(mine, wanted, runner.Settings(jobs=2), lambda one: soon(later)).run()

    began = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(until_cancelled())
    assert time.monotonic() - began < 60, "it went on until the other was over its time"


def bench(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fxpool", "bench", str(tmp_path / "mine.py"), "--out", str(tmp_path / "out")]
    return subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def until(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def recorded(tmp_path: Path) -> dict[Run, Record]:
    path = tmp_path / "out" / "results.jsonl"
    return results.read(path)[1] if path.exists() and path.read_bytes().count(b"\n") else {}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_runner_that_is_ended_leaves_nothing_and_goes_on(
    mine: suite.Suite, tmp_path: Path, number: signal.Signals
) -> None:
    process = bench(tmp_path, "--cases", "model,busy", "--jobs", "2")
    assert until(lambda: recorded(tmp_path)), process.communicate(timeout=5)
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert number == signal.SIGKILL or (process.returncode == 130 and "to resume" in output)
    assert until(lambda: not [one for one in psutil.process_iter() if _has(one, str(tmp_path))], 20)
    (done,) = recorded(tmp_path)
    assert done.case == "model"
    again = bench(tmp_path, "--cases", "model,trained", "--jobs", "2")
    output, _ = again.communicate(timeout=120)
    assert again.returncode == 0, output
    assert "already done: 1 of 2 runs" in output and "trained/training/eager" in output
    assert {run.case for run in recorded(tmp_path)} == {"model", "trained"}


@pytest.mark.slow
def test_the_command_says_what_was_wrong(mine: suite.Suite, tmp_path: Path) -> None:
    process = bench(tmp_path, "--cases", "fails,model")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "fails/inference/eager: failed: ValueError: no such model" in output
    assert "results.jsonl" in output and "per call" in output
    assert "model/inference/eager: called, " in output, "a finished step has no line"
    assert "2 runs in " in output and "building " in output.partition("all processes together: ")[2]
    # Failed runs have results too, and are repeated on request only.
    process = bench(tmp_path, "--cases", "fails,model")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1 and "already done: 2 of 2 runs" in output
    process = bench(tmp_path, "--cases", "fails,model", "--retry")
    output, _ = process.communicate(timeout=120)
    assert "already done: 1 of 2 runs" in output and "[2/2] fails" in output
    process = bench(tmp_path, "--cases", "nothing")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2 and "unknown case 'nothing'" in output


@pytest.mark.slow
def test_other_results_are_compared_with(mine: suite.Suite, tmp_path: Path) -> None:
    process = bench(tmp_path, "--cases", "model")
    assert process.communicate(timeout=120) and process.returncode == 0
    path = tmp_path / "out" / "results.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[1:]:
        line["measured"]["samples"] = [value / 10 for value in line["measured"]["samples"]]
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    process = bench(tmp_path, "--cases", "model", "--compare", str(other))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "slower" in output
    process = bench(tmp_path, "--cases", "model", "--compare", str(path))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "same" in output
