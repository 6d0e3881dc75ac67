from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from fxpool.bench.demo import demonstration, processes
from fxpool.bench.demo.child import LoweringCounter

STATS = {"hits": 0, "misses": 2, "compiles": {"worker": 2, "in_process": 0}, "bypasses": {}, "fallbacks": {}}


def result(backend: str, seconds: float, **changes: Any) -> dict[str, Any]:
    return {
        "backend": backend,
        "first_call_seconds": seconds,
        "second_call_seconds": 0.1,
        "difference": 1e-6,
        "graph_lowerings": 0,
        "stats": STATS if backend == "fxpool" else None,
    } | changes


def said_to(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def text_of(rows: list[tuple[demonstration.Run, Mapping[str, Any]]]) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(demonstration.table(rows))
    return said_to(console)


def test_the_plan_has_every_combination_once_and_cold_before_warm() -> None:
    runs = demonstration.plan()
    assert len(runs) == len(set(runs)) == 2 * 2 * 5
    for model in demonstration.MODELS:
        for what in demonstration.WHATS:
            for backend in ("fxpool", "inductor"):
                cold = runs.index(demonstration.Run(model, what, backend, "cold"))
                assert runs.index(demonstration.Run(model, what, backend, "warm")) > cold
    assert [run.state for run in demonstration.plan(["eager"])] == [""] * 4


def test_the_table_shows_ratio_counts_and_where_it_was_compiled() -> None:
    warm = STATS | {"hits": 2, "misses": 0, "compiles": {"worker": 0, "in_process": 0}}
    measured = [
        (demonstration.Run("gpt2", "train", "fxpool", "cold"), result("fxpool", 5.0)),
        (demonstration.Run("gpt2", "train", "fxpool", "warm"), result("fxpool", 1.0, stats=warm)),
        (demonstration.Run("gpt2", "train", "inductor", "cold"), result("inductor", 20.0, graph_lowerings=2)),
        (demonstration.Run("gpt2", "train", "inductor", "warm"), result("inductor", 4.0)),
        (demonstration.Run("bert", "infer", "eager", ""), result("eager", 0.05, difference=0.0)),
    ]
    shown = demonstration.table(measured)
    assert list(zip(*(column.cells for column in shown.columns), strict=True)) == [
        ("GPT-2 training", "fxpool cold", "5.00 s", "0.25 x", "0", "2", "2 in a worker", "1.0e-06"),
        ("GPT-2 training", "fxpool warm", "1.00 s", "0.25 x", "2", "0", "from the cache", "1.0e-06"),
        ("GPT-2 training", "inductor cold", "20.00 s", "", "", "", "2 in process", "1.0e-06"),
        ("GPT-2 training", "inductor warm", "4.00 s", "", "", "", "from its cache", "1.0e-06"),
        ("BERT inference", "eager", "0.05 s", "", "", "", "nothing", "0.0e+00"),
    ]
    for width in (60, 80):
        console = Console(file=io.StringIO(), width=width)
        console.print(demonstration.table(measured, width))
        assert "from the cache" in said_to(console) and "20.00 s" in said_to(console)
        assert "…" not in said_to(console)


def test_the_table_does_not_hide_what_was_lowered_in_the_process_or_why() -> None:
    run = demonstration.Run("gpt2", "infer", "fxpool", "cold")
    assert "1 lowered in the process, not counted" in text_of([(run, result("fxpool", 1.0, graph_lowerings=1))])
    counted = STATS | {"compiles": {"worker": 0, "in_process": 1}, "fallbacks": {"server_died": 1}}
    shown = text_of([(run, result("fxpool", 1.0, graph_lowerings=1, stats=counted))])
    assert "1 in process, server_died: 1" in shown


def test_children_get_directories_of_their_own_and_none_of_the_users_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FXPOOL_POOL", "off")
    monkeypatch.setenv("TORCHINDUCTOR_FX_COMPILE_MODE", "serialize")
    environment = processes.child_environment(tmp_path, {"OMP_NUM_THREADS": "2"})
    assert environment["FXPOOL_POOL"] == "embedded" and "TORCHINDUCTOR_FX_COMPILE_MODE" not in environment
    assert environment["OMP_NUM_THREADS"] == "2" and environment["HF_HUB_OFFLINE"] == "1"
    for name in ("FXPOOL_CACHE_DIR", "FXPOOL_RUNTIME_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert Path(environment[name]).is_relative_to(tmp_path)


def test_a_childs_result_is_its_last_line() -> None:
    code = "print('chatter'); print('{\"a\": 1}')"
    assert processes.run_child(["-c", code], processes.child_environment(Path("/x")), "it") == {"a": 1}


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import sys; print('told you', file=sys.stderr); sys.exit(3)", "exited with status 3"),
        ("import os; print('told you', flush=True); os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        ("print('told you')", "printed no result"),
        ("import time; print('told you', flush=True); time.sleep(600)", "was killed after"),
    ],
)
def test_a_failed_child_is_reported_with_its_last_output(code: str, how: str) -> None:
    with pytest.raises(processes.ChildError) as caught:
        processes.run_child(
            ["-c", code], processes.child_environment(Path("/x")), "it", limit=2.0 if "600" in code else 60.0
        )
    assert how in caught.value.message and "told you" in caught.value.output


def test_the_status_says_whether_a_child_failed_or_was_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(difference: float, fails: bool = False) -> Any:
        def run(*others: Any) -> dict[str, Any]:
            if fails:
                raise processes.ChildError("it", "exited with status 1", "[red] is no markup here")
            return result("eager", 1.0, difference=difference)

        return canned_loader(run)

    for loader, status, word in (
        (answers(1e-6), 0, "first call 1.0 s of the process's 0.0 s"),
        (answers(1.0), 1, "differ from eager"),
        (answers(float("nan")), 1, "differ from eager"),
        (answers(0.0, fails=True), 1, "[red] is no markup here"),
    ):
        monkeypatch.setattr(demonstration, "Loader", loader)
        console = Console(file=io.StringIO(), width=200)
        assert demonstration.run_demo(console, ["eager"]) == status
        assert word in said_to(console)


def canned_loader(run: Any) -> Any:
    """In place of a `Loader`: nothing is started, `run` answers."""
    return lambda *arguments: contextlib.nullcontext(types.SimpleNamespace(run=run))


def test_a_terminal_gets_the_same_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demonstration, "Loader", canned_loader(lambda *arguments: result("eager", 1.0)))
    console = Console(file=io.StringIO(), width=200, force_terminal=True)
    assert demonstration.run_demo(console, ["eager"]) == 0
    assert "GPT-2 inference, eager: first call 1.0 s" in said_to(console)


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    """A directory with a module `hanging`: the real one's forks, which say where they run instead of measuring."""
    (tmp_path / "hanging.py").write_text(
        "import os, pathlib, sys, time\n"
        "from fxpool.bench.demo import child, processes\n"
        "def measure(model, what, *rest):\n"
        "    if model == 'bert': print('told you', flush=True); sys.exit(3)\n"
        f"    pathlib.Path({str(tmp_path)!r}, 'pid.new').write_text(str(os.getpid()))\n"
        f"    os.rename({str(tmp_path / 'pid.new')!r}, {str(tmp_path / 'pid')!r})\n"
        "    while what == 'train': time.sleep(1)\n"
        "    return {'pid': os.getpid(), 'variable': os.environ['VARIABLE']}\n"
        "child.measure = measure\n"
        "child._serve = lambda: processes.serve(child.main)\n"  # without importing what it is to measure
        "child.main()\n"
    )
    return tmp_path


@pytest.mark.slow
def test_a_loader_forks_for_each_measurement(hanging: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(hanging)}
    asked = ["--model", "gpt2", "--backend", "eager", "--what"]
    with processes.Loader("hanging", environment) as loader:
        first = loader.run([*asked, "infer"], {**environment, "VARIABLE": "1"}, "it")
        second = loader.run([*asked, "infer"], {**environment, "VARIABLE": "2"}, "it")
        assert first["pid"] != second["pid"]
        assert (first["variable"], second["variable"]) == ("1", "2")
        with pytest.raises(processes.ChildError) as caught:
            loader.run(["--model", "bert", "--backend", "eager", "--what", "infer"], environment, "it")
        assert "exited with status 3" in caught.value.message and "told you" in caught.value.output
        with pytest.raises(processes.ChildError) as caught:
            loader.run([*asked, "train"], {**environment, "VARIABLE": "1"}, "it", limit=3.0)
        assert "was killed after 3 s" in caught.value.message
        assert not psutil.pid_exists(int((hanging / "pid").read_text()))
        assert loader.run([*asked, "infer"], {**environment, "VARIABLE": "3"}, "it")["variable"] == "3"


def test_lowerings_are_counted_without_importing_their_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counted_module.py").write_text("class GraphLowering:\n    def __init__(self, x): self.x = x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(LoweringCounter, "MODULE", "counted_module")
    counter = LoweringCounter()
    counter.install()
    assert "counted_module" not in sys.modules and counter.count == 0
    try:
        import counted_module

        assert counted_module.GraphLowering(3).x == 3
        assert counter.count == 1 and counter not in sys.meta_path
        later = LoweringCounter()
        later.install()
        counted_module.GraphLowering(4)
        assert (counter.count, later.count) == (2, 1)
    finally:
        sys.modules.pop("counted_module", None)


def test_canned_results_survive_the_trip_through_json() -> None:
    run = demonstration.Run("bert", "infer", "fxpool", "cold")
    canned = result("fxpool", 2.0)
    assert text_of([(run, canned)]) == text_of([(run, json.loads(json.dumps(canned)))])


def test_sigterm_takes_the_child_and_its_directory_along(python: str, hanging: Path, tmp_path: Path) -> None:
    program = (
        "import sys\nfrom rich.console import Console\nfrom fxpool.bench.demo import demonstration\n"
        "original = demonstration.Loader\n"
        "demonstration.WHATS = {'train': 'training'}\n"
        "demonstration.Loader = lambda module, environment: original('hanging', environment)\n"
        "sys.exit(demonstration.run_demo(Console(), ['eager']))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(hanging), "VARIABLE": ""}
    process = subprocess.Popen(
        [python, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    while not (tmp_path / "pid").exists():
        assert process.poll() is None
        time.sleep(0.02)
    child = int((tmp_path / "pid").read_text())
    process.terminate()
    assert process.wait() == 143
    assert not psutil.pid_exists(child)
    assert not list((tmp_path / "t").glob("fxpool-*"))
