"""`run` and `warm`: the program is as with python, and its graphs are in the cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fxpool import child_python
from fxpool.commands import program
from fxpool.commands.main import main
from fxpool.lowering.core import pool_environment
from fxpool.lowering.inductor import program_run

PROGRAMS = {
    "facts": "import sys\nprint(sys.argv, __name__, __file__, sys.path[0], vars(sys.modules['__main__']) is globals())",
    "raises": "def f():\n    raise ValueError('no')\nf()",
    "exits": "import sys\nsys.exit(7)",
    "says": "raise SystemExit('goodbye')",
    "killed": "import os\nos.kill(os.getpid(), 9)",
    "interrupted": "raise KeyboardInterrupt",
    "syntax": "def f(:",
}
COMPILES = """
import sys
import torch

assert "torch._inductor.compile_fx" not in sys.modules

def f(x):
    return (x * 3).sin() + 1

torch.testing.assert_close(torch.compile(f, backend=sys.argv[1])(torch.ones(8)), f(torch.ones(8)))
"""
UNSTORED = """
import torch

def f(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

torch.compile(f, backend="fxpool")(torch.ones(8))
"""


def fxpool(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fxpool", *arguments]
    environment = {**os.environ, "COLUMNS": ""}  # lines are not wrapped
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def rows(output: str) -> dict[str, str]:
    return {first.strip(): rest for first, _, rest in (line.partition("  ") for line in output.splitlines())}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_as_with_python(name: str, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(PROGRAMS[name])
    plain = subprocess.run(
        [sys.executable, "p.py", "a", "--summary", "-m"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    run = fxpool(tmp_path, "run", "p.py", "a", "--summary", "-m")
    assert (run.stdout, run.stderr, run.returncode) == (plain.stdout, plain.stderr, plain.returncode)
    with_summary = fxpool(tmp_path, "run", "--summary", "p.py", "a", "--summary", "-m")
    assert (with_summary.stdout, with_summary.returncode) == (plain.stdout, plain.returncode)
    assert with_summary.stderr.startswith(plain.stderr) and "fxpool: no report" in with_summary.stderr


def test_a_module_is_run_as_with_python(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("import sys\nprint(sys.argv[1:], __name__, __spec__.name)\n")
    assert fxpool(tmp_path, "run", "-m", "m", "-m", "x").stdout == "['-m', 'x'] __main__ m\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "Missing argument 'PROGRAM'"),
        (["warm", "-m"], "Missing argument 'PROGRAM'"),
        (["run", "--mode", "quick", "p.py"], "'quick' is not"),
        (["run", "--nothing", "p.py"], "No such option"),
    ],
)
def test_mistakes_start_no_program(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2 and message in result.stderr and "--mode['mode']" not in result.stderr


def test_torch_must_load_its_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    result = CliRunner().invoke(main, ["run", "p.py"])
    assert result.exit_code == 2 and "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch" in result.stderr


def test_workers_do_not_install(tmp_path: Path) -> None:
    variables = program_run.environment(reports=str(tmp_path))
    assert list(variables) == [child_python.PROGRAM_RUN]
    assert not variables.keys() & pool_environment.job_environment(variables).keys()


def report(**values: Any) -> dict[str, Any]:
    none = {"hits": 0, "compiles": {}, "fallbacks": {}, "bypasses": {}, "borrowed": {}, "inductor": {}, "graphs": []}
    return {**none, "seconds_saved": 0.0, "cache_dir": "/nowhere", **values}


def test_the_summary_adds_up_the_processes() -> None:
    one = report(hits=2, compiles={"worker": 1}, seconds_saved=31.0)
    assert program._summary([one]) == "2 hits, 1 compile, 31 s saved"
    other = report(fallbacks={"code_unknown": 1}, seconds_saved=2.0)
    assert program._summary([one, other]) == "2 hits, 1 compile, 33 s saved, 1 fallback (2 processes)"
    stock = report(borrowed={"fx": 1}, inductor={"hits": 1, "misses": 1, "bypasses": 0, "directory": "/i"})
    assert program._summary([stock]) == "1 hit in Inductor's cache, 1 compile"


def test_a_graph_counts_as_not_stored_once() -> None:
    def record(label: str, *reasons: str, level: str = "aot", outcome: str = "worker") -> dict[str, Any]:
        return {"label": label, "level": level, "outcome": outcome, "reasons": list(reasons)}

    stored = [record("graph 0 [0/0]"), record("graph 1 [1/0]", "defined_in_main", level="fx", outcome="")]
    fast = record("graph 2 [2/0]", "bypass:compiled_fast")
    assert program._lost(report(graphs=[*stored, fast])) == 0
    lost = [
        record("graph 3 [3/0]", "bypass:higher_order_operator"),
        record("graph 4 [4/0]", level="in_process", outcome="in_process"),
        record("graph 5 [5/0] forward", "fx:code_unknown", level="fx", outcome="in_process"),
        record("graph 5 [5/0] backward", "fx:code_unknown", level="fx", outcome="in_process"),
        record("graph 6 [6/0]", outcome="eager"),
    ]
    assert program._lost(report(graphs=[*stored, fast, *lost])) == 4
    inductor = {"hits": 0, "misses": 1, "bypasses": 1, "directory": "/i"}
    assert program._lost(report(borrowed={"fx": 2}, inductor=inductor)) == 1
    assert program._lost(report(borrowed={"fx": 2})) == 2, "no lookups: Inductor's caches are off"


@pytest.mark.slow
def test_a_warmed_program_hits(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(COMPILES)
    warmed = fxpool(tmp_path, "warm", "p.py", "fxpool")
    assert warmed.returncode == 0, warmed.stderr
    shown = rows(warmed.stdout)
    assert (shown["graphs compiled"].strip(), shown["hits"].strip(), shown["not stored"].strip()) == ("1", "0", "0")
    assert "1 entry" in shown["cache"] and str(tmp_path / "c") in shown["cache"]
    again = fxpool(tmp_path, "run", "--summary", "p.py", "fxpool")
    assert again.stderr.startswith("fxpool: 1 hit, 0 compiles, ")
    # Unchanged code: the same graph under the other name, in a mode that uses fxpool's cache.
    stock = fxpool(tmp_path, "run", "--mode", "async+subprocess", "--summary", "p.py", "inductor")
    assert stock.stderr.startswith("fxpool: 1 hit, 0 compiles, "), stock.stderr
    plain = subprocess.run([sys.executable, "p.py", "fxpool"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert plain.stderr == ""
    total = json.loads(fxpool(tmp_path, "stats", "--json").stdout)["host"]
    assert (total["total"]["hits"], total["total"]["misses"], total["hit_rate"]) == (3, 1, 0.75)


@pytest.mark.slow
def test_background_compiles_are_waited_for(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(COMPILES)
    warmed = fxpool(tmp_path, "warm", "--mode", "async+subprocess", "p.py", "inductor")
    assert (warmed.returncode, rows(warmed.stdout)["graphs compiled"].strip()) == (0, "1"), warmed.stderr
    assert "1 entry" in rows(warmed.stdout)["cache"]


@pytest.mark.slow
def test_stock_inductor_compiles_on_the_pool(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(COMPILES)
    warmed = fxpool(tmp_path, "warm", "p.py", "inductor")
    assert warmed.returncode == 0, warmed.stderr
    assert rows(warmed.stdout)["by Inductor"].strip().startswith("1 compiled, 0 hits; its cache: ")


@pytest.mark.slow
def test_a_graph_that_cannot_be_stored_is_a_status_and_a_reason(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(UNSTORED)
    warmed = fxpool(tmp_path, "warm", "p.py")
    assert warmed.returncode == 1, warmed.stderr
    assert rows(warmed.stdout)["not stored"].strip() == "1"
    assert "bypasses: higher_order_operator (1)" in warmed.stdout and "No action needed" in warmed.stdout
