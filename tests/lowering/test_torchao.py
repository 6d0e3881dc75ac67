"""Models that torchao quantizes compile in workers and are kept, though torchao registers passes with Inductor."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import run_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280), pytest.mark.filterwarnings("ignore")]

# Where `make test-all` puts it: transformers imports it where it can.
BESIDE = Path(sys.prefix) / "torchao"

COMMON = """
import json, sys
import torch
from torch import nn
torch.manual_seed(0)

def report(compiled, expected):
    torch.testing.assert_close(compiled, expected, rtol=1e-4, atol=1e-4)
    import fxpool
    stats = fxpool.stats()
    print(json.dumps([stats["hits"], stats["compiles"], stats["bypasses"]]))
"""
EXPORTED = (
    COMMON
    + """
import torch._inductor.config
from torchao.quantization.pt2e import move_exported_model_to_eval
from torchao.quantization.pt2e.inductor_passes import x86
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
    X86InductorQuantizer, get_default_x86_inductor_quantization_config,
)

if "changed" in sys.argv:
    original = x86._get_linear_node
    x86._get_linear_node = lambda *args: original(*args)
if "added" in sys.argv:
    x86._register_dequant_promotion_pass(x86.get_dequantize_per_tensor_activation_pattern(), pass_number=0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
x = torch.randn(4, 16)
with torch.no_grad(), torch._inductor.config.patch(freezing=True):
    quantizer = X86InductorQuantizer().set_global(get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model, (x,)).module(), quantizer)
    prepared(x)
    converted = convert_pt2e(prepared)
    move_exported_model_to_eval(converted)
    report(torch.compile(converted, backend="fxpool")(x), converted(x))
"""
)
WEIGHTS = (
    COMMON
    + """
from torchao.quantization import Int8WeightOnlyConfig, quantize_
model = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 16)).eval()
quantize_(model, Int8WeightOnlyConfig())
with torch.no_grad():
    x = torch.randn(4, 32)
    report(torch.compile(model, backend="fxpool")(x), model(x))
"""
)
IN_A_WORKER, NOWHERE = {"worker": 1, "in_process": 0}, {"worker": 0, "in_process": 0}


def run(text: str, *arguments: str) -> Any:
    if not (BESIDE / "torchao").is_dir():
        pytest.skip(f"no torchao in {BESIDE}; `make test-all` puts it there")
    path = os.pathsep.join(filter(None, [str(BESIDE), os.environ.get("PYTHONPATH")]))
    out = run_python(["-W", "ignore", "-c", text, *arguments], PYTHONPATH=path)
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize("program", [EXPORTED, WEIGHTS], ids=["exported for x86", "weights"])
def test_a_worker_compiles_and_another_process_hits(program: str, cache: Path) -> None:
    assert run(program) == [0, IN_A_WORKER, {}]
    assert run(program) == [1, NOWHERE, {}]


@pytest.mark.parametrize("change", ["changed", "added"])
def test_a_program_that_changes_the_passes_gets_no_hit(change: str, cache: Path) -> None:
    """A worker has the package's own passes: the program's process compiles."""
    assert run(EXPORTED) == [0, IN_A_WORKER, {}]
    hits, compiles, _ = run(EXPORTED, change)
    assert (hits, compiles) == (0, {"worker": 0, "in_process": 1})
