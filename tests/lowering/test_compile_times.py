"""torch's own record of a compile (metrics, times, counters, traces) says of fxpool what it says of Inductor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from processes import run_python
from tiers import first_tier

PROGRAM = """
import json, sys, torch
from torch._dynamo import utils
if sys.argv[1] == "inductor":
    import torch._inductor.config
    torch._inductor.config.cpp_cache_precompile_headers = False  # takes longer than the graph
def product(x, w):
    return x @ w
def kernels(x, w):
    return (x @ w).relu().softmax(-1)
function = globals()[sys.argv[2]]
w = torch.randn(16, 16, requires_grad=True)
torch.compile(function, backend=sys.argv[1])(torch.randn(8, 16), w).sum().backward()
counters = {name: dict(counts) for name, counts in utils.counters.items() if name not in ("frames", "stats")}
times = {name: len(values) for name, values in utils.compilation_time_metrics.items()}
metrics = {}
for record in utils.get_compilation_metrics():
    for name in ("inductor_compile_time_s", "code_gen_time_s", "backend_compile_time_s", "joint_graph_pass_time_us",
                 "aotautograd_local_cache_hit_count", "aotautograd_local_cache_miss_count",
                 "inductor_fx_local_cache_hit_count", "inductor_fx_local_cache_miss_count"):
        metrics[name] = metrics.get(name, 0) + (getattr(record, name, None) or 0)
print(json.dumps([counters, times, metrics, dict(utils.calculate_time_spent())]))
"""
# Functions that stock Inductor has times of, wherever it lowers.
TIMED = {"compile_fx_inner", "fx_codegen_and_compile", "aot_trace_joint_graph", "_recursive_joint_graph_passes",
         "_recursive_post_grad_passes", "GraphLowering.run", "GraphLowering.codegen"}  # fmt: skip
CACHES = ("aotautograd_cache_", "fx_graph_cache_")


class Told:
    """What torch has of one run of the program."""

    def __init__(self, directory: Path, backend: str, function: str, name: str, **environment: str) -> None:
        trace = directory / f"{backend}-{name}"
        out = run_python(
            ["-c", PROGRAM, backend, function],
            TORCH_TRACE=str(trace),
            TORCHINDUCTOR_CACHE_DIR=str(directory / "i"),
            FXPOOL_POOL="embedded",
            **environment,
        )
        self.counters: dict[str, dict[str, int]]
        self.metrics: dict[str, float]
        self.counters, self.times, self.metrics, self.spent = json.loads(out.splitlines()[-1])
        self.artifacts = sorted(name for name in _artifacts(trace) if name.startswith(CACHES))


def _artifacts(trace: Path) -> list[str]:
    found: list[str] = []
    for file in trace.iterdir():
        for line in file.read_text(errors="replace").splitlines():
            if line[:1] in "VWI" and "] {" in line:
                record: dict[str, Any] = json.loads(line.partition("] ")[2])
                found.append(record.get("artifact", {}).get("name", ""))
    return found


@pytest.mark.parametrize("function", first_tier(["product", "kernels"], "product"))
def test_a_miss_and_a_hit_are_told_as_stock_inductor_tells_them(cache: Path, tmp_path: Path, function: str) -> None:
    stock = [Told(tmp_path, "inductor", function, name) for name in ("miss", "hit")]
    ours = [Told(tmp_path, "fxpool", function, name) for name in ("miss", "hit")]
    for own, of_torch in zip(ours, stock, strict=True):
        assert own.counters["aot_autograd"] == of_torch.counters["aot_autograd"]
        for section in of_torch.counters:
            assert own.counters.get(section, {}) == of_torch.counters[section], section
        assert own.artifacts == of_torch.artifacts
        for name, value in of_torch.metrics.items():
            if "cache" in name:
                assert own.metrics[name] == value, name
            else:
                assert bool(own.metrics[name]) == bool(value), name
    assert stock[0].times.keys() >= TIMED, "torch has other names for them"
    assert ours[0].times.keys() >= TIMED
    assert not ours[1].times.keys() & TIMED
    assert ours[0].metrics["backend_compile_time_s"] > ours[0].metrics["inductor_compile_time_s"] > 0
    assert ours[0].spent.keys() >= {"inductor_compile", "code_gen"} & stock[0].spent.keys()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["normal", "serialize"])
def test_what_is_compiled_in_this_process_is_counted_once(cache: Path, tmp_path: Path, mode: str) -> None:
    stock = Told(tmp_path, "inductor", "kernels", "miss")
    own = Told(tmp_path, "fxpool", "kernels", mode, TORCHINDUCTOR_FX_COMPILE_MODE=mode)
    assert own.counters["aot_autograd"] == stock.counters["aot_autograd"]
    for section in stock.counters:
        assert own.counters.get(section, {}) == stock.counters[section], section
    assert own.artifacts == stock.artifacts
