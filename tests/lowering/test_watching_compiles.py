"""A run's trace and log, of real compiles: parent, server and workers on one clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from processes import run_python
from tiers import first_tier

PROGRAM = """
import json, os, sys, torch, fxpool
from fxpool.lowering.core.runtime import runtime
def graph(x): return (x @ x).softmax(-1).sin()
x = torch.randn(8, 8)
run = torch.compile(graph, backend="fxpool", options={"mode": sys.argv[1]})
torch.testing.assert_close(run(x), graph(x))
fxpool.wait(100)
torch.testing.assert_close(run(x), graph(x))
print(json.dumps([os.getpid(), runtime.pool().server_pid]))
"""


def traced(tmp_path: Path, mode: str) -> tuple[list[dict[str, Any]], list[str], int, int]:
    trace, log = tmp_path / "run.json", tmp_path / "log"
    printed = run_python(["-c", PROGRAM, mode], FXPOOL_TRACE=str(trace), FXPOOL_PROGRESS=str(log), FXPOOL_POOL="host")
    parent, server = json.loads(printed)
    return json.loads(trace.read_text()), log.read_text().splitlines(), parent, server


@pytest.mark.slow
@pytest.mark.parametrize("mode", first_tier(["subprocess", "async+subprocess"], "async+subprocess"))
def test_a_compile_is_seen_in_parent_server_and_worker(
    shared_pool: Path, cache: Path, tmp_path: Path, mode: str
) -> None:
    found, log, parent, server = traced(tmp_path, mode)
    spans = {(row["name"], row["pid"]): row for row in found if row["ph"] == "X"}
    names = {row["pid"]: row["args"]["name"] for row in found if row["ph"] == "M"}
    (worker,) = {pid for name, pid in spans if name == "lowering"}
    assert len({parent, server, worker}) == 3
    assert names[server].startswith("fxpool server") and names[worker] == "fxpool worker"
    graph = "graph 0 [0/0]"
    job, compile_, load = spans[graph, worker], spans["compile", parent], spans["load", parent]

    def inside(part: dict[str, Any], whole: dict[str, Any]) -> bool:
        begin, end = part["ts"], part["ts"] + part["dur"]
        return bool(whole["ts"] <= begin + 1 and end <= whole["ts"] + whole["dur"] + 1)  # microseconds, rounded

    for phase in ("loading code", "lowering", "kernels", "publishing"):
        assert inside(spans[phase, worker], job), phase
    assert inside(job, compile_) and compile_["ts"] + compile_["dur"] <= load["ts"] + 1
    (kernels,) = [row for (name, pid), row in spans.items() if pid not in (parent, worker)]
    assert inside(kernels, job), "compiled by a worker of its own"
    waits = [row for row in found if row["ph"] == "b" and row["pid"] == server]
    assert graph in {row["name"] for row in waits}
    said = [line.partition(": ")[2] for line in log if line.split(" ", 1)[1].startswith(graph)]
    wanted = ["queued", f"compiling in worker {worker}: lowering", "ready, compiled by a worker"]
    positions = [said.index(text) for text in wanted]
    assert positions == sorted(positions) and said[-1] == wanted[-1]


@pytest.mark.slow
def test_a_hit_is_seen_too(shared_pool: Path, cache: Path, tmp_path: Path) -> None:
    traced(tmp_path, "subprocess")
    (tmp_path / "run.json").unlink()
    (tmp_path / "log").unlink()
    found, log, parent, server = traced(tmp_path, "subprocess")
    assert server is None, "no pool is started to watch a hit"
    assert {row["pid"] for row in found} == {parent}
    assert {"capture", "lookup", "load", "graph 0 [0/0]"} <= {row["name"] for row in found}
    assert [line.partition(": ")[2] for line in log] == ["ready, from the cache"]


IN_PARTS = """
import torch, torch._functorch.config
torch._functorch.config.enable_autograd_cache = False
x = torch.randn(8, 8, requires_grad=True)
torch.compile(lambda x: (x.sin() @ x).softmax(-1).sum(), backend="fxpool")(x).backward()
"""


@pytest.mark.slow
def test_a_graph_in_parts_is_ready_after_its_forward(shared_pool: Path, cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    run_python(["-c", IN_PARTS], FXPOOL_PROGRESS=str(log))
    said = [line.split(" ", 1)[1] for line in log.read_text().splitlines()]
    ready = [line.partition(" (")[0] for line in said if ": ready" in line]
    assert ready == [
        "graph 0 [0/0] forward: ready, compiled by a worker",
        "graph 0 [0/0]: ready, in parts",
        "graph 0 [0/0] backward: ready, compiled by a worker",
    ], said
