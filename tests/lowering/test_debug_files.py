"""``TORCH_COMPILE_DEBUG=1`` and ``trace.enabled``: Inductor's files are where stock Inductor writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from compiling import compiled
from processes import run_python

import fxpool

PROGRAM = """
import glob, json, os, sys, torch
def function(x, w):
    return torch.nn.functional.gelu(x @ w).softmax(-1).sum()
w = torch.randn(16, 16, requires_grad=True)
torch.compile(function, backend=sys.argv[1])(torch.randn(8, 16), w).backward()
import fxpool
print(json.dumps(fxpool.counters.snapshot()["compiles"] if sys.argv[1] == "fxpool" else {}))
"""
OF_A_GRAPH = {"fx_graph_readable.py", "fx_graph_runnable.py", "fx_graph_transformed.py", "ir_pre_fusion.txt",
              "ir_post_fusion.txt", "output_code.py"}  # fmt: skip


def run(directory: Path, backend: str) -> tuple[dict[str, set[str]], dict[str, Any]]:
    """The files of each graph, by its directory's name without numbers, and what fxpool counted as compiled."""
    directory.mkdir()
    out = run_python(
        ["-c", PROGRAM, backend],
        TORCH_COMPILE_DEBUG="1",
        TORCH_COMPILE_DEBUG_DIR=str(directory),
        TORCHINDUCTOR_CACHE_DIR=str(directory / "i"),
        FXPOOL_POOL="embedded",
    )
    files = {
        path.name.rpartition("_")[0]: {file.name for file in path.iterdir()}
        for path in directory.glob("torch_compile_debug/run_*/torchinductor/*")
        if path.is_dir()
    }
    return files, json.loads(out.splitlines()[-1])


@pytest.mark.slow
def test_a_worker_writes_the_files_that_stock_inductor_writes(cache: Path, tmp_path: Path) -> None:
    ours, compiles = run(tmp_path / "ours", "fxpool")
    assert compiles == {"worker": 1, "in_process": 0}
    stock, _ = run(tmp_path / "stock", "inductor")
    assert ours.keys() == stock.keys() == {"model__0_forward", "model__0_backward"}
    for graph, files in stock.items():
        assert ours[graph] >= files >= OF_A_GRAPH
    # AOTAutograd's log lies beside them, once, and no other directory was made.
    assert len(list((tmp_path / "ours").glob("torch_compile_debug/run_*/torchinductor/aot_*_debug.log"))) == 1
    assert len(list((tmp_path / "ours").glob("torch_compile_debug/run_*"))) == 1


@pytest.mark.slow
def test_what_is_served_from_the_cache_writes_none(shared_pool: Path, cache: Path, tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 3 + 1

    x = torch.randn(4)
    for number in range(2):
        with inductor_config.patch({"trace.enabled": True, "trace.debug_dir": str(tmp_path / f"d{number}")}):
            compiled(function, x)
    (written,) = (tmp_path / "d0" / "torchinductor").iterdir()
    assert "aten" in (written / "fx_graph_readable.py").read_text()
    assert "def call" in (written / "output_code.py").read_text()
    assert not (tmp_path / "d1").exists()
    assert fxpool.stats()["hits"] == 1


@pytest.mark.slow
def test_where_they_are_is_said(
    shared_pool: Path, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with inductor_config.patch({"trace.enabled": True, "trace.debug_dir": str(tmp_path / "d")}):
        compiled(lambda x: x.cos() * 5 + 2, torch.randn(4))
    (said,) = [record.getMessage() for record in caplog.records if "debug trace" in record.getMessage()]
    assert Path(said.rpartition(" ")[2]).parent == tmp_path / "d" / "torchinductor"
