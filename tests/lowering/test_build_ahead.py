"""Graphs recorded in one process are compiled in another, and served in a third. Nothing compiles while they are
recorded, and no other machine's request becomes an entry unless the builds are equal."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from compiling import compiled
from processes import OFFLINE

import fxpool
from fxpool import config
from fxpool.codecache.bundle import capture_directory
from fxpool.codecache.bundle.capture_directory import Capture
from fxpool.errors import PoolError
from fxpool.lowering import build_ahead
from fxpool.lowering.compiling import graph_recording
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.request.compile_request import CompileRequest

# A whole graph with its backward, two graphs around a graph break, one with sizes, and one that can only be cached
# after AOTAutograd.
PROGRAM = """
import json
import sys
import torch
from fxpool.bench.witness import LoweringCounter
import fxpool

lowered = LoweringCounter()
lowered.install()
torch.manual_seed(0)

def context():
    return torch.utils.checkpoint.create_selective_checkpoint_contexts([torch.ops.aten.exp.default])

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))

def broken(x):
    x = x.sin() * 2
    torch._dynamo.graph_break()
    return x.cos() + 1

def sized(x):
    return (x * x).sum(0) + x.shape[0]

def scaled(x):
    part = lambda x: x.exp() * 3
    return torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False, context_fn=context).sum()

def result(function, *inputs):
    inputs = [one.clone().requires_grad_() for one in inputs]
    out = function(*inputs)
    out.square().sum().backward()
    return [out.detach(), *(one.grad for one in inputs)]

x = torch.randn(4, 8)
for function, dynamic in ((model, None), (broken, None), (sized, True), (scaled, None)):
    compiled = torch.compile(function, backend="fxpool", dynamic=dynamic)
    torch.testing.assert_close(result(compiled, x), result(function, x))
if sys.argv[1:] == ["loaded"]:
    fxpool.wait()
stats = fxpool.stats()
print(json.dumps({"lowered": lowered.count, **{name: stats[name] for name in (
    "hits", "misses", "guard_misses", "compiles", "captures", "eager_calls", "entries_written")}}))
"""
GRAPHS = 6  # forward and backward of `scaled` are two


def run(directory: Path, cache: str, *command: str, **variables: str) -> str:
    environment = {**os.environ, **OFFLINE, "FXPOOL_CACHE_DIR": str(directory / cache), "COLUMNS": "", **variables}
    done = subprocess.run(
        [sys.executable, *command], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_recorded_graphs_are_built_elsewhere_and_served(
    shared_pool: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    compiler = tmp_path / "c++"  # the pool was started without it
    compiler.write_text('#!/bin/sh\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    printed, *said = run(tmp_path, "a", "-m", "fxpool", "capture", "--to", "graphs", "program.py").splitlines()
    report = json.loads(printed)
    assert report["lowered"] == report["entries_written"] == 0
    assert report["compiles"] == {"worker": 0, "in_process": 0}
    assert report["captures"] == {"recorded": GRAPHS, "present": 0}
    assert report["eager_calls"] == {"recorded": GRAPHS}
    assert said[0] == f"recorded {GRAPHS} graphs in graphs"
    again = run(tmp_path, "a", "-m", "fxpool", "capture", "--to", "graphs", "program.py").splitlines()
    assert again[1] == f"recorded 0 graphs in graphs, {GRAPHS} captured again"

    built = run(tmp_path, str(cache), "-m", "fxpool", "build", "graphs", "--to", "graphs.bundle").splitlines()
    assert f"{GRAPHS} graphs: {GRAPHS} compiled, 0 in the cache, 0 not compiled" in built
    rows = map(json.loads, run(tmp_path, str(cache), "-m", "fxpool", "build", "graphs", "--json").splitlines())
    assert [(row["compiled"], row["key"] == row["captured"]) for row in rows] == [(False, True)] * GRAPHS

    run(tmp_path, "c", "-m", "fxpool", "cache", "import", "graphs.bundle")
    report = json.loads(run(tmp_path, "c", "program.py", "loaded"))
    assert (report["hits"], report["misses"], report["guard_misses"], report["lowered"]) == (GRAPHS, 0, 0, 0)
    assert report["compiles"] == {"worker": 0, "in_process": 0}


# ------------------------------------------------------------------------------ recording


@pytest.fixture
def recorded(
    shared_pool: Path, cache: Path, tmp_path: Path, nothing_lowered_here: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[Capture]]:
    """Run functions while graphs are recorded, and return all that have been."""
    directory = tmp_path / "graphs"

    def record(function: Callable[..., Any], *inputs: Any, **options: Any) -> list[Capture]:
        fxpool.configure(capture=directory)
        try:
            compiled(function, *inputs, **options)
        finally:
            fxpool.configure(capture=None)
        return (
            [capture_directory.read(path) for path in capture_directory.paths(str(directory))]
            if directory.exists()
            else []
        )

    return record


def test_all_stages_are_recorded(recorded: Callable[..., list[Capture]]) -> None:
    """Under the options of each stage, and the graph runs eagerly."""
    found = recorded(torch.sin, torch.randn(8), mode="progressive+subprocess", stages=[{}, {"max_autotune": True}])
    assert len({one.key for one in found}) == 2
    assert fxpool.stats()["captures"] == {"recorded": 2, "present": 0}
    (graph,) = fxpool.stats()["graphs"]
    assert graph["outcome"] == "eager"


@pytest.mark.parametrize("mode", ["normal", "serialize", "async+subprocess", "subprocess"])
def test_each_mode_records_the_same_graph(mode: str, recorded: Callable[..., list[Capture]]) -> None:
    """The machine that serves it may have another mode: the key is the same."""
    (one,) = recorded(torch.sin, torch.randn(8), mode="subprocess")
    assert recorded(torch.sin, torch.randn(8), mode=mode) == [one]


def test_a_graph_in_the_cache_is_recorded_too(recorded: Callable[..., list[Capture]]) -> None:
    compiled(torch.cos, torch.randn(8))
    (one,) = recorded(torch.cos, torch.randn(8))
    assert one.key == fxpool.stats()["graphs"][0]["key"]


def test_sizes_under_one_key_are_recorded_apart(recorded: Callable[..., list[Capture]]) -> None:
    """Their guards may differ."""
    recorded(lambda x: (x * 2).sum(), torch.randn(4, 8), dynamic=True)
    found = recorded(lambda x: (x * 2).sum(), torch.randn(5, 9), dynamic=True)
    assert len(found) == 2 and found[0].key == found[1].key


def test_a_graph_without_a_key_is_not_recorded(recorded: Callable[..., list[Capture]]) -> None:
    """It runs eagerly, and the reason is counted."""
    assert recorded(torch.sin, torch.randn(8), cache=False) == []
    assert fxpool.stats()["captures"] == {"recorded": 0, "present": 0, "not:cache_off": 1}
    (graph,) = fxpool.stats()["graphs"]
    assert graph["outcome"] == "eager" and graph["reasons"] == ["bypass:cache_off", "not_recorded:cache_off"]


def test_a_directory_that_cannot_be_written_costs_a_warning(
    recorded: Callable[..., list[Capture]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "graphs").write_text("a file")
    fxpool.configure(capture=tmp_path / "graphs")
    compiled(torch.sin, torch.randn(8))
    compiled(torch.cos, torch.randn(8))
    assert caplog.text.count("cannot record graphs in") == 1
    assert fxpool.stats()["captures"]["not:write_failed"] == 2


# ------------------------------------------------------------------------------ building


def changed(capture: Capture, change: Callable[[CompileRequest], CompileRequest]) -> Capture:
    return msgspec.structs.replace(capture, request=change(CompileRequest.load(capture.request)).dump())


def with_builds(capture: Capture, **builds: str) -> Capture:
    def replace(request: CompileRequest) -> CompileRequest:
        return dataclasses.replace(request, builds={**(request.builds or {}), **builds})

    return changed(capture, replace)


def build(*recorded: Capture) -> list[build_ahead.Built]:
    store = runtime.store()
    assert store is not None
    return list(build_ahead.build(recorded, store))


def test_another_machine_s_compiler_is_replaced_by_this_one_s(recorded: Callable[..., list[Capture]]) -> None:
    """Its digest is in the key, its path is not."""
    (one,) = recorded(torch.sin, torch.randn(8))
    elsewhere = changed(
        one,
        lambda request: dataclasses.replace(
            request, ambient=request.ambient.configured_with({"cpp.cxx": (None, "/there/bin/g++")})
        ),
    )
    (built,) = build(elsewhere)
    assert built.compiled, built.error
    compiled(torch.sin, torch.randn(8))
    assert fxpool.stats()["hits"] == 1


@pytest.mark.parametrize("refuses", ["command", "worker"])
def test_a_machine_with_other_builds_compiles_nothing(
    refuses: str, recorded: Callable[..., list[Capture]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = recorded(torch.sin, torch.randn(8))
    if refuses == "worker":
        monkeypatch.setattr(build_ahead, "_require_builds", lambda request: None)
    (built,) = build(with_builds(one, torch="of another release", compiler="another"))
    assert built.entry is None and "other builds" in built.error and built.error.endswith("compiler, torch")
    store = runtime.store()
    assert store is not None and store.sizes()["entries"] == 0


def test_a_request_that_cannot_be_read_is_reported_and_the_others_are_built(
    recorded: Callable[..., list[Capture]],
) -> None:
    (one,) = recorded(torch.sin, torch.randn(8))
    broken = msgspec.structs.replace(one, request=b"nothing")
    first, second = build(broken, one)
    assert first.entry is None and "UnpicklingError" in first.error
    assert second.compiled


def test_without_a_pool_nothing_is_built(
    recorded: Callable[..., list[Capture]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = recorded(torch.sin, torch.randn(8))

    def no_pool() -> Any:
        raise PoolError("none")

    monkeypatch.setattr(runtime, "pool", no_pool)
    with pytest.raises(PoolError):
        build(one)


def test_recording_is_off_unless_asked_for() -> None:
    assert not graph_recording.is_on(config.current())
