from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from fxpool import demo
from fxpool.demo_child import LoweringCounter

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


def text_of(rows: list[tuple[demo.Run, Mapping[str, Any]]]) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(demo.table(rows))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_plan_has_every_combination_once_and_cold_before_warm() -> None:
    runs = demo.plan()
    assert len(runs) == len(set(runs)) == 2 * 2 * 5
    for model in demo.MODELS:
        for what in demo.WHATS:
            for backend in ("fxpool", "inductor"):
                cold = runs.index(demo.Run(model, what, backend, "cold"))
                assert runs.index(demo.Run(model, what, backend, "warm")) > cold
    assert [run.state for run in demo.plan(["eager"])] == [""] * 4


def test_the_table_shows_ratio_counts_and_where_it_was_compiled() -> None:
    warm = STATS | {"hits": 2, "misses": 0, "compiles": {"worker": 0, "in_process": 0}}
    shown = demo.table(
        [
            (demo.Run("gpt2", "train", "fxpool", "cold"), result("fxpool", 5.0)),
            (demo.Run("gpt2", "train", "fxpool", "warm"), result("fxpool", 1.0, stats=warm)),
            (demo.Run("gpt2", "train", "inductor", "cold"), result("inductor", 20.0, graph_lowerings=2)),
            (demo.Run("gpt2", "train", "inductor", "warm"), result("inductor", 4.0)),
            (demo.Run("bert", "infer", "eager", ""), result("eager", 0.5, difference=0.0)),
        ]
    )
    assert list(zip(*(column.cells for column in shown.columns), strict=True)) == [
        ("GPT-2 training", "fxpool cold", "5.00 s", "0.25 x", "0", "2", "2 in a worker", "1.0e-06"),
        ("GPT-2 training", "fxpool warm", "1.00 s", "0.25 x", "2", "0", "from the cache", "1.0e-06"),
        ("GPT-2 training", "inductor cold", "20.00 s", "", "", "", "2 in process", "1.0e-06"),
        ("GPT-2 training", "inductor warm", "4.00 s", "", "", "", "from its cache", "1.0e-06"),
        ("BERT inference", "eager", "0.50 s", "", "", "", "nothing", "0.0e+00"),
    ]
    console = Console(file=io.StringIO(), width=80)
    console.print(shown)
    assert "from the cache" in console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_table_does_not_hide_what_was_lowered_in_the_process_or_why() -> None:
    run = demo.Run("gpt2", "infer", "fxpool", "cold")
    assert "1 lowered in process, not counted" in text_of([(run, result("fxpool", 1.0, graph_lowerings=1))])
    counted = STATS | {"compiles": {"worker": 0, "in_process": 1}, "fallbacks": {"server_died": 1}}
    shown = text_of([(run, result("fxpool", 1.0, graph_lowerings=1, stats=counted))])
    assert "1 in process, server_died: 1" in shown


def test_children_get_directories_of_their_own_and_none_of_the_users_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FXPOOL_POOL", "off")
    monkeypatch.setenv("TORCHINDUCTOR_FX_COMPILE_MODE", "serialize")
    environment = demo.child_environment(tmp_path, {"OMP_NUM_THREADS": "2"})
    assert "FXPOOL_POOL" not in environment and "TORCHINDUCTOR_FX_COMPILE_MODE" not in environment
    assert environment["OMP_NUM_THREADS"] == "2" and environment["HF_HUB_OFFLINE"] == "1"
    for name in ("FXPOOL_CACHE_DIR", "FXPOOL_RUNTIME_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert Path(environment[name]).is_relative_to(tmp_path)


def test_a_childs_result_is_its_last_line() -> None:
    code = "print('chatter'); print('{\"a\": 1}')"
    assert demo.run_child(["-c", code], demo.child_environment(Path("/x")), "it") == {"a": 1}


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
    with pytest.raises(demo.ChildError) as caught:
        demo.run_child(["-c", code], demo.child_environment(Path("/x")), "it", limit=2.0 if "600" in code else 60.0)
    assert how in caught.value.message and "told you" in caught.value.output


def test_the_status_says_whether_a_child_failed_or_was_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(difference: float, fails: bool = False) -> Any:
        def run_child(arguments: list[str], *others: Any) -> dict[str, Any]:
            if fails:
                raise demo.ChildError("it", "exited with status 1", "[red] is no markup here")
            return result("eager", 1.0, difference=difference)

        return run_child

    for run_child, status, word in (
        (fake(1e-6), 0, "first call 1.0 s"),
        (fake(1.0), 1, "differ from eager"),
        (fake(float("nan")), 1, "differ from eager"),
        (fake(0.0, fails=True), 1, "[red] is no markup here"),
    ):
        monkeypatch.setattr(demo, "run_child", run_child)
        console = Console(file=io.StringIO(), width=200)
        assert demo.run_demo(console, ["eager"]) == status
        assert word in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_terminal_gets_the_same_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "run_child", lambda *arguments: result("eager", 1.0))
    console = Console(file=io.StringIO(), width=200, force_terminal=True)
    assert demo.run_demo(console, ["eager"]) == 0
    assert "GPT-2 inference, eager: first call 1.0 s" in console.file.getvalue()  # type: ignore[attr-defined]


def test_lowerings_are_counted_without_importing_their_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counted_module.py").write_text("class GraphLowering:\n    def __init__(self, x): self.x = x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(LoweringCounter, "MODULE", "counted_module")
    counter = LoweringCounter()
    counter.install()
    assert "counted_module" not in sys.modules and counter.count == 0
    try:
        import counted_module  # type: ignore[import-not-found]

        assert counted_module.GraphLowering(3).x == 3
        assert counter.count == 1 and counter not in sys.meta_path
        later = LoweringCounter()
        later.install()
        counted_module.GraphLowering(4)
        assert (counter.count, later.count) == (2, 1)
    finally:
        sys.modules.pop("counted_module", None)


def test_canned_results_survive_the_trip_through_json() -> None:
    run = demo.Run("bert", "infer", "fxpool", "cold")
    canned = result("fxpool", 2.0)
    assert text_of([(run, canned)]) == text_of([(run, json.loads(json.dumps(canned)))])


def test_sigterm_takes_the_child_and_its_directory_along(python: str, tmp_path: Path) -> None:
    # The child that the demonstration starts first says where it runs, then hangs.
    (tmp_path / "hang.py").write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(tmp_path)!r}, 'pid.new').write_text(str(os.getpid()))\n"
        f"os.rename({str(tmp_path / 'pid.new')!r}, {str(tmp_path / 'pid')!r})\n"
        "time.sleep(600)\n"
    )
    program = (
        "import sys\nfrom rich.console import Console\nfrom fxpool import demo\n"
        "original = demo.run_child\n"
        f"demo.run_child = lambda arguments, *rest: original([{str(tmp_path / 'hang.py')!r}], *rest)\n"
        "sys.exit(demo.run_demo(Console(), ['eager']))\n"
    )
    process = subprocess.Popen([python, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (tmp_path / "pid").exists():
        assert process.poll() is None
        time.sleep(0.02)
    child = int((tmp_path / "pid").read_text())
    process.terminate()
    assert process.wait() == 143
    assert not psutil.pid_exists(child)
    assert not list((tmp_path / "t").glob("fxpool-demo-*"))
