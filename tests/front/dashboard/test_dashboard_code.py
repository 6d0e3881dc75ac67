"""The generated code of a graph that was really compiled, as the dashboard's page gets it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from fxpool.codecache.store.listing import Listing
from fxpool.dashboard import generated_code
from fxpool.dashboard.store_view import StoreView


def function(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).softmax(-1)


@pytest.mark.slow
def test_code_and_kernels_of_a_real_entry(tmp_path: Path, shared_pool: Path) -> None:
    torch.compile(function, backend="fxpool")(torch.randn(4, 8))
    view = StoreView(str(tmp_path / "c"))
    view.look()
    ((row,), _) = view.rows(0)
    assert row["function"] == "function" and Path(str(row["place"])).name.startswith("test_dashboard_code.py")
    assert view.facts()["served"] == 0 and view.facts()["first"] == 1
    found = asyncio.run(generated_code.generated_code(view.root, row["key"], row["name"]))
    ((_, text),) = found["code"]
    assert "def call(" in text and "cpp_fused" in text and "#include" in text
    torch._dynamo.reset()
    torch.compile(function, backend="fxpool")(torch.randn(4, 8))
    view.look()
    assert (view.facts()["served"], view.facts()["seconds_saved"]) == (1, round(row["seconds"], 3))
    assert view.served_since(0)[0][1] > 0 and view.served_since(1) == []
    assert Listing(view.root).look()
