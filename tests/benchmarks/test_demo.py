from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from fxpool.bench import demo
from fxpool.bench.case import Run
from fxpool.bench.environment import child_environment
from fxpool.bench.results import Record

STATS = {"hits": 0, "misses": 2, "compiles": {"worker": 2, "in_process": 0}, "bypasses": {}, "fallbacks": {}}


def record(run: Run, seconds: float, **changes: Any) -> Record:
    stats = STATS if run.backend == "fxpool" else {}
    facts: dict[str, Any] = {"first_call": seconds, "difference": 1e-6, "lowerings": 0, "stats": stats}
    return Record(run, **{"state": "done", **facts, **changes})


def text_of(records: list[Record]) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(demo.table(records))
    return said_to(console)


def said_to(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_plan_has_every_combination_once_and_cold_before_warm() -> None:
    runs = demo.plan()
    assert len(runs) == len(set(runs)) == 2 * 2 * 5
    for model in demo.MODELS:
        for mode in demo.MODES:
            for backend in ("fxpool", "inductor"):
                assert runs.index(Run(model, mode, backend, 2)) > runs.index(Run(model, mode, backend, 1))
    assert [run.repetition for run in demo.plan(["eager"])] == [1] * 4


def test_the_table_shows_ratio_counts_and_where_it_was_compiled() -> None:
    warm = STATS | {"hits": 2, "misses": 0, "compiles": {"worker": 0, "in_process": 0}}
    measured = [
        record(Run("gpt2", "training", "fxpool"), 5.0),
        record(Run("gpt2", "training", "fxpool", 2), 1.0, stats=warm),
        record(Run("gpt2", "training", "inductor"), 20.0, lowerings=2),
        record(Run("gpt2", "training", "inductor", 2), 4.0),
        record(Run("bert", "inference", "eager"), 0.05, difference=None),
    ]
    shown = demo.table(measured)
    assert list(zip(*(column.cells for column in shown.columns), strict=True)) == [
        ("GPT-2 training", "fxpool cold", "5.00 s", "0.25 x", "0", "2", "2 in a worker", "1.0e-06"),
        ("GPT-2 training", "fxpool warm", "1.00 s", "0.25 x", "2", "0", "from the cache", "1.0e-06"),
        ("GPT-2 training", "inductor cold", "20.00 s", "", "", "", "2 in process", "1.0e-06"),
        ("GPT-2 training", "inductor warm", "4.00 s", "", "", "", "from its cache", "1.0e-06"),
        ("BERT inference", "eager", "0.05 s", "", "", "", "nothing", ""),
    ]
    for width in (60, 80):
        console = Console(file=io.StringIO(), width=width)
        console.print(demo.table(measured, width))
        assert "from the cache" in said_to(console) and "20.00 s" in said_to(console)
        assert "…" not in said_to(console)


def test_the_table_does_not_hide_what_was_lowered_in_the_process_or_why() -> None:
    run = Run("gpt2", "inference", "fxpool")
    assert "1 lowered in the process, not counted" in text_of([record(run, 1.0, lowerings=1)])
    counted = STATS | {"compiles": {"worker": 0, "in_process": 1}, "fallbacks": {"server_died": 1}}
    assert "1 in process, server_died: 1" in text_of([record(run, 1.0, lowerings=1, stats=counted)])


def test_children_get_directories_of_their_own_and_none_of_the_users_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FXPOOL_POOL", "off")
    monkeypatch.setenv("TORCHINDUCTOR_FX_COMPILE_MODE", "serialize")
    environment = child_environment(tmp_path, {"OMP_NUM_THREADS": "2"})
    assert environment["FXPOOL_POOL"] == "embedded" and "TORCHINDUCTOR_FX_COMPILE_MODE" not in environment
    assert environment["OMP_NUM_THREADS"] == "2" and environment["HF_HUB_OFFLINE"] == "1"
    for name in ("FXPOOL_CACHE_DIR", "FXPOOL_RUNTIME_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert Path(environment[name]).is_relative_to(tmp_path)


def canned_runner(answer: Callable[[Run], Record]) -> Any:
    """In place of a `Runner`: nothing is started, `answer` returns the record of each run."""

    class Canned:
        live: list[Any] = []
        waiting: list[Run] = []

        def __init__(self, suite: object, runs: list[Run], settings: Any, on_record: Any, on_change: object) -> None:
            assert settings.jobs == 1 and not settings.measure
            self._runs, self._on_record = runs, on_record

        async def run(self) -> None:
            for run in self._runs:
                self._on_record(answer(run))

    return Canned


@pytest.mark.parametrize(
    ("changes", "status", "word"),
    [
        ({}, 0, "gpt2/inference/eager: first call 1.00 s"),
        ({"state": "wrong", "difference": 1.0}, 1, "gpt2/inference/eager: wrong: differs from eager by 1.0e+00"),
        ({"state": "failed", "first_call": None, "reason": "[red] is no markup here"}, 1, "[red] is no markup here"),
    ],
)
@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_status_says_whether_a_child_failed_or_was_wrong(
    changes: dict[str, Any], status: int, word: str, is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "Runner", canned_runner(lambda run: record(run, 1.0, **changes)))
    console = Console(file=io.StringIO(), width=200, force_terminal=is_terminal)
    assert demo.run_demo(console, ["eager"]) == status
    assert word in said_to(console)


def test_a_stopped_demonstration_has_the_status_of_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(run: Run) -> Record:
        raise asyncio.CancelledError

    monkeypatch.setattr(demo, "Runner", canned_runner(stopped))
    assert demo.run_demo(Console(file=io.StringIO()), ["eager"]) == 130


def test_sigterm_takes_the_child_and_its_directory_along(python: str, tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(
        "import os, pathlib, time\nfrom fxpool.bench.case import Case\n"
        "def make():\n"
        f"    pathlib.Path({str(tmp_path)!r}, 'pid.new').write_text(str(os.getpid()))\n"
        f"    os.rename({str(tmp_path / 'pid.new')!r}, {str(tmp_path / 'pid')!r})\n"
        "    time.sleep(600)\n"
        "CASES = [Case('gpt2', make), Case('bert', make)]\n"
    )
    program = (
        "import sys\nfrom rich.console import Console\nfrom fxpool.bench import demo\n"
        "load = demo.suite.load\n"
        f"demo.suite.load = lambda name: load({str(tmp_path / 'hanging.py')!r})\n"
        "sys.exit(demo.run_demo(Console(), ['eager']))\n"
    )
    process = subprocess.Popen([python, "-c", program], stdout=subprocess.DEVNULL, env=os.environ)
    while not (tmp_path / "pid").exists():
        assert process.poll() is None
        time.sleep(0.02)
    child = int((tmp_path / "pid").read_text())
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 130
    assert not psutil.pid_exists(child)
    assert not list((tmp_path / "t").glob("fxpool-demo-*"))
