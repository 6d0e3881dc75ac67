"""A miss logs and traces what stock Inductor logs and traces, each line once; prints of a pass arrive."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from processes import run_with_errors

pytestmark = pytest.mark.slow

PROGRAM = """
import sys, torch
import logs_models
model, inputs = logs_models.MODELS[sys.argv[2]]()
found = torch.compile(model, backend=sys.argv[1])(*inputs)
if torch.is_tensor(found) and found.requires_grad:
    found.sum().backward()
"""
MODELS = """
import torch
from torch import nn

def gelu():
    weight = torch.randn(16, 16, requires_grad=True)
    return lambda x: nn.functional.gelu(x @ weight).sum(-1), (torch.randn(8, 16),)

def pointwise():
    return lambda x: (x.sin() + 1).relu(), (torch.randn(8, 16),)

def convolution():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), (torch.randn(2, 3, 8, 8),)

def attention():
    qkv = [torch.randn(1, 2, 8, 16, requires_grad=True) for _ in range(3)]
    return lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v).softmax(-1), qkv

def reduction():
    return lambda x: nn.functional.layer_norm(x, (16,)).softmax(-1).sum(0), (torch.randn(8, 16),)

def embedding():
    return nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 3)), (torch.tensor([[1, 2], [3, 4]]),)

MODELS = {f.__name__: f for f in (gelu, pointwise, convolution, attention, reduction, embedding)}
"""
NAMES = ("gelu", "pointwise", "convolution", "attention", "reduction", "embedding")
ARTIFACTS = (
    "kernel_code,post_grad_graphs,pre_grad_graphs,fusion,perf_hints,schedule,ir_pre_fusion,ir_post_fusion,aot_graphs,"
    "output_code"
)
# Lines of stock Inductor's that say where its own caches and pools are, and those about times.
OWN = re.compile(
    r"cache|fx_graph_runnable|compile_worker|subprocess|Output code written to|No CUDA runtime", re.IGNORECASE
)


def ran(directory: Path, backend: str, model: str, **environment: str) -> str:
    """Standard error of a run that compiles, without caches."""
    (directory / "logs_models.py").write_text(MODELS)
    (directory / "program.py").write_text(PROGRAM)
    _, errors = run_with_errors(
        [str(directory / "program.py"), backend, model],
        TORCHINDUCTOR_CACHE_DIR=str(directory / f"i-{backend}"),
        TORCHINDUCTOR_FORCE_DISABLE_CACHES="1",
        FXPOOL_POOL="embedded",
        PYTHONHASHSEED="0",
        **environment,
    )
    return errors


def lines(text: str) -> Counter[str]:
    """The lines of a log, without times, process ids, paths and names made of hashes."""
    found: Counter[str] = Counter()
    for line in text.splitlines():
        line = re.sub(r"^[VDIWE]\d{4} [\d:.]+ \d+ \S*?([\w.]+\.py):\d+\]", r"\1", line)
        line = re.sub(r"/[\w./+-]+/|\b0x[0-9a-f]+|\b[a-z2-7]{20,}\b|\b[0-9a-f]{16,}\b|c[a-z2-7]{50,}", "~", line)
        line = re.sub(r"<eval_with_key>\.\d+|~_lazy_graph_module\.py", "<generated>", line)
        line = re.sub(r"\d+\.\d+(e-?\d+)?", "#", line)
        if not OWN.search(line):
            found[line.rstrip()] += 1
    return found


@pytest.mark.timeout(280)
@pytest.mark.parametrize("model", NAMES)
def test_logs(model: str, cache: Path, tmp_path: Path) -> None:
    stock, ours = (lines(ran(tmp_path, backend, model, TORCH_LOGS=ARTIFACTS)) for backend in ("inductor", "fxpool"))
    assert sum(stock.values()) > 30
    assert (ours - stock, stock - ours) == (Counter(), Counter())


def artifacts(trace: Path) -> Counter[str]:
    """The names of a trace's records, those of artifacts with their own names."""
    found: Counter[str] = Counter()
    for file in trace.iterdir():
        for line in file.read_text(errors="replace").splitlines():
            if line[:1] in "VWI" and "] {" in line:
                record: dict[str, Any] = json.loads(line.partition("] ")[2])
                name = next(key for key in record if key not in _CONTEXT)
                found[record["artifact"]["name"] if name == "artifact" else name] += 1
    return found


_CONTEXT = frozenset((
    "rank", "frame_id", "frame_compile_id", "attempt", "has_payload", "stack", "compiled_autograd_id",
))  # fmt: skip
# Records of stock Inductor's own caches, and of the times of its phases.
_OF_STOCK = re.compile(r"cache|^str$|chromium_event|^describe_|compilation_metrics|dump_file")


@pytest.mark.timeout(280)
@pytest.mark.parametrize("model", NAMES)
def test_traces(model: str, cache: Path, tmp_path: Path) -> None:
    traced = {}
    for backend in ("inductor", "fxpool"):
        trace = tmp_path / f"trace-{backend}"
        ran(tmp_path, backend, model, TORCH_TRACE=str(trace))
        traced[backend] = Counter(
            {name: count for name, count in artifacts(trace).items() if not _OF_STOCK.search(name)}
        )
    assert traced["inductor"]["inductor_output_code"] >= 1
    assert traced["fxpool"] == traced["inductor"]


PRINTS = """
import sys, torch, torch._inductor.config as config
import printing_pass
with config.patch(post_grad_custom_post_pass=printing_pass.show):
    torch.compile(lambda x: x.sin() + 25, backend="fxpool")(torch.ones(3, 4))
"""


def test_prints_of_a_pass_arrive(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "printing_pass.py").write_text(
        "import sys\n"
        "def show(graph):\n"
        "    print('the pass saw', len(list(graph.nodes)), 'nodes')\n"
        "    print('with an error', file=sys.stderr, end='')\n"
    )
    (tmp_path / "program.py").write_text(PRINTS)
    out, errors = run_with_errors([str(tmp_path / "program.py")], FXPOOL_POOL="embedded")
    assert "the pass saw 4 nodes\n" in out
    assert "with an error" in errors
