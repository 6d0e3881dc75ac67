"""What a person who looks for a bug is shown of a graph that came from the cache."""

from __future__ import annotations

import json
import linecache
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from processes import run_python

import fxpool
from fxpool.commands.main import main

PROGRAM = """
import torch, fxpool
def function(x): return (x.sin() @ x).relu()
torch.compile(function, backend="fxpool")(torch.ones(3, 3))
stats = fxpool.stats()
print("hits", stats["hits"], "misses", stats["misses"])
"""


def function(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() @ x).relu()


@pytest.mark.slow
def test_generated_code_is_shown_and_tracebacks_find_it(shared_pool: Path, cache: Path) -> None:
    torch._dynamo.reset()
    torch.compile(function, backend="fxpool")(torch.ones(3, 3))
    key = str(fxpool.stats()["graphs"][-1]["key"])
    shown = CliRunner().invoke(main, ["cache", "show", key[:12], "--code"])
    assert shown.exit_code == 0, shown.output
    heading, _, text = shown.output.partition("\n")
    name = heading.removeprefix("# ")
    assert name.startswith(f"<fxpool {key[:16]} forward ")
    assert "async_compile.cpp_pybinding" in text and "extern_kernels.mm(" in text
    assert "".join(linecache.getlines(name)).strip() == text.strip()


@pytest.mark.slow
def test_logs_and_traces_of_a_hit_hold_what_stock_writes(shared_pool: Path, cache: Path, tmp_path: Path) -> None:
    # A trace asks for provenance, which is compiled in: both runs write one.
    environment = {
        "TORCH_LOGS": "output_code",
        "TORCH_TRACE": str(tmp_path / "cold"),
        "TRITON_OF_THE_PROGRAM": "planted",
    }
    assert "hits 0 misses 1" in run_python(["-c", PROGRAM], **environment)
    environment |= {"TORCH_LOGS_OUT": str(tmp_path / "log"), "TORCH_TRACE": str(tmp_path / "trace")}
    environment["TRITON_OF_THE_PROGRAM"] = "of the hit"
    assert "hits 1 misses 0" in run_python(["-c", PROGRAM], **environment)
    log = (tmp_path / "log").read_text()
    assert "Output code:" in log and "extern_kernels.mm(" in log
    names = set()
    traced = {name: "".join(file.read_text() for file in (tmp_path / name).iterdir()) for name in ("cold", "trace")}
    assert "planted" in traced["cold"] and "of the hit" in traced["trace"] and "planted" not in traced["trace"]
    for file in (tmp_path / "trace").iterdir():
        for line in file.read_text().splitlines():
            if "{" in line and not line.startswith("\t"):
                record = json.loads(line[line.index("{") :])
                names |= set(record) | {record["artifact"]["name"]} if "artifact" in record else set(record)
    expected = {"inductor_output_code", "inductor_post_grad_graph", "aot_inference_graph", "fx_graph_runnable"}
    assert expected <= names
