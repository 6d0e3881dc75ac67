"""A process that imported Inductor before fxpool has the keys of other processes, the first on a host as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from processes import run_python

PROGRAM = """
import json, sys
{first}
import torch, fxpool
torch.compile(lambda x: (x.sin() + 1).relu(), backend="fxpool")(torch.ones(4, 8))
counted = fxpool.stats()
fxpool.close()
print(json.dumps([counted["hits"], counted["compiles"], counted["fallbacks"]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    ["import torch._inductor.compile_fx", ""],
    ids=["Inductor first", "fxpool first"],
)
def test_the_order_of_imports_changes_no_key(first: str, tmp_path: Path) -> None:
    second = "" if first else "import torch._inductor.compile_fx"
    environment = {"FXPOOL_CACHE_DIR": str(tmp_path / "cache"), "FXPOOL_POOL": "embedded"}

    def counted(imported: str) -> Any:
        return json.loads(run_python(["-c", PROGRAM.format(first=imported)], **environment).splitlines()[-1])

    assert counted(first) == [0, {"worker": 1, "in_process": 0}, {}]
    assert counted(second) == [1, {"worker": 0, "in_process": 0}, {}]


CUSTOM = """
import json, torch, fxpool
@torch.library.custom_op("tables::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2
@twice.register_fake
def _(x):
    return torch.empty_like(x)
twice.register_autograd(lambda ctx, gradient: gradient * 2)
def function(x):
    return (twice(x).sin() * twice(x + 1)).sum()
{first}
torch._dynamo.reset()
torch.compile(function, backend="fxpool")(torch.ones(4, 8, requires_grad=True)).backward()
counted = fxpool.stats()
fxpool.close()
print(json.dumps([counted["hits"], counted["compiles"], counted["fallbacks"]]))
"""


@pytest.mark.slow
def test_a_compile_by_inductor_before_changes_no_key(tmp_path: Path) -> None:
    """Inductor remembers in its tables how it treats an operator without a lowering."""
    environment = {"FXPOOL_CACHE_DIR": str(tmp_path / "cache"), "FXPOOL_POOL": "embedded"}
    before = 'torch.compile(function, backend="inductor")(torch.ones(4, 8, requires_grad=True)).backward()'
    programs = [CUSTOM.format(first=first) for first in (before, "")]
    seen = [json.loads(run_python(["-c", text], **environment).splitlines()[-1]) for text in programs]
    assert seen == [[0, {"worker": 1, "in_process": 0}, {}], [1, {"worker": 0, "in_process": 0}, {}]]
