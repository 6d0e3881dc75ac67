"""Programs whose standard streams are closed, full or None, and what they compile all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import HERE, run_python

PROGRAM = """
import json, os, sys, warnings
what, said = sys.argv[1:]
if what == "closed": sys.stderr.close()
if what == "none": sys.stdin = sys.stdout = sys.stderr = None
if what == "broken":
    reader, writer = os.pipe()
    os.dup2(writer, 2), os.close(writer), os.close(reader)
import torch
if what == "strict": warnings.simplefilter("error")
def graph(x):
    return (x * 3).sin()
x = torch.randn(8)
torch.testing.assert_close(torch.compile(graph, backend="fxpool")(x), graph(x))
import fxpool
from fxpool import counters
from fxpool.watch import events
found = counters.snapshot()
with open(said, "w") as file:
    json.dump([found["compiles"]["worker"], found["hits"], found["fallbacks"], found["bypasses"]], file)
"""
COMPILED, HIT = [1, 0, {}, {}], [0, 1, {}, {}]


def outcome(what: str, end: str, directory: Path, **environment: str) -> object:
    """What a program with these streams says, in a file, and how it ended."""
    said = directory / f"said-{what}"
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" "$2" "$3" {end}', sys.executable, PROGRAM, what, str(said)],
        cwd=HERE,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=None if end else subprocess.PIPE,
        text=True,
        timeout=280,
        check=False,
    )
    return json.loads(said.read_text()) if not done.returncode else f"ended with {done.returncode}: {done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["closed_from_the_start", "strict"])
def test_workers_compile_for_it(what: str, lone_pool: Path, cache: Path, tmp_path: Path) -> None:
    end = "<&- >&- 2>&-" if what == "closed_from_the_start" else ""
    settings = {"FXPOOL_PROGRESS": "1", "FXPOOL_POOL": "host", "FXPOOL_TRACE": str(tmp_path / "run.json")}
    assert outcome(what, end, tmp_path, **settings) == COMPILED
    assert {"fxpool worker"} <= {row["args"]["name"] for row in json.loads((tmp_path / "run.json").read_text())
                                 if row["ph"] == "M"}  # fmt: skip


@pytest.mark.slow
def test_nobody_sees_and_nothing_fails(lone_pool: Path, cache: Path, tmp_path: Path) -> None:
    streams = {"": "", "closed": "", "none": "", "broken": "", "full": "2>/dev/full", "gone": ">&- 2>&-"}
    found = {what: outcome(what, end, tmp_path, FXPOOL_PROGRESS="1") for what, end in streams.items()}
    nowhere = str(tmp_path / "no" / "such" / "file")
    for name, path in (("full file", "/dev/full"), ("no file", nowhere), ("a directory", str(tmp_path))):
        found[name] = outcome(name, "", tmp_path, FXPOOL_PROGRESS=path, FXPOOL_TRACE=path)
    assert found == {what: HIT if what else COMPILED for what in found}


@pytest.mark.slow
def test_a_graph_in_quarantine_runs_eagerly_where_warnings_are_errors(lone_pool: Path, cache: Path) -> None:
    program = """
import warnings, torch, fxpool
from fxpool.errors import LastAttempt, WorkerDiedError
from fxpool.lowering.compiling import remote
def dies(*_):
    raise WorkerDiedError("graph 0", LastAttempt(7, 2), signal=9)
remote._submit_once = dies
warnings.simplefilter("error")
x = torch.randn(8)
torch.testing.assert_close(torch.compile(torch.sin, backend="fxpool")(x), x.sin())
print(fxpool.stats()["eager_calls"])
"""
    assert run_python(["-c", program]) == "{'worker_died': 1}\n"
