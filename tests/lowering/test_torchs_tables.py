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


@pytest.mark.parametrize("first", ["import torch._inductor.compile_fx", ""], ids=["Inductor first", "fxpool first"])
def test_the_order_of_imports_changes_no_key(first: str, tmp_path: Path) -> None:
    second = "" if first else "import torch._inductor.compile_fx"
    environment = {"FXPOOL_CACHE_DIR": str(tmp_path / "cache"), "FXPOOL_POOL": "embedded"}

    def counted(imported: str) -> Any:
        return json.loads(run_python(["-c", PROGRAM.format(first=imported)], **environment).splitlines()[-1])

    assert counted(first) == [0, {"worker": 1, "in_process": 0}, {}]
    assert counted(second) == [1, {"worker": 0, "in_process": 0}, {}]
