"""A process whose frames are served imports neither a compiler nor a tracer's parts that only compiles use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from processes import run_python

# `frame_runs` counts graphs that Inductor lowers, and imports Inductor for that.
PROGRAM = """
import json, sys
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
compiled = torch.compile(model, backend="fxpool")
x = torch.randn(4, 8)
compiled(x).sum().backward()
got, modules = [parameter.grad.clone() for parameter in model.parameters()], sorted(sys.modules)
model.zero_grad()
model(x).sum().backward()
for one, parameter in zip(got, model.parameters(), strict=True):
    torch.testing.assert_close(one, parameter.grad)
import fxpool
print(json.dumps({"frames": fxpool.stats()["frames"], "modules": modules}))
"""
_OF_COMPILES = (
    "networkx",
    "torch._dynamo.backends.debugging",
    "torch._dynamo.repro.after_dynamo",
    "torch._functorch.aot_autograd",
    "torch._functorch.partitioners",
    "torch._inductor.compile_fx",
    "torch._inductor.graph",
    "torch._inductor.scheduler",
    "fxpool.lowering.compile_graph",
    "fxpool.lowering.compiling",
    "fxpool.lowering.fallback",
    "fxpool.lowering.worker",
    "fxpool.pool",
)


def _run(**variables: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(run_python(["-c", PROGRAM], FXPOOL_FRAMES="on", **variables).splitlines()[-1])
    return report


@pytest.mark.timeout(600)
def test_a_served_frame_imports_no_compiler(shared_pool: Path, cache: Path) -> None:
    assert _run()["frames"] == {"traced": 1, "kept": 1}
    served = _run()
    assert served["frames"] == {"served": 1}
    assert [name for name in _OF_COMPILES if name in served["modules"]] == []
    # Without the early entry in its table, torch imports all back ends when it looks ours up.
    late = _run(TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert late["frames"] == {"served": 1} and "networkx" in late["modules"]
