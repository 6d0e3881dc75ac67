"""A torch newer than any tested, which the user wants to try: what does not fit is Inductor's, and counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# This torch is taken for a newer one, and something that fxpool needs of it is gone.
PROGRAM = """
import json, sys
import torch
from fxpool.torch_compat import versions
versions.NEWEST = (2, 10)
versions.OLDEST = (2, 9)
{missing}
import torch._inductor.graph
from fxpool.bench.witness import counting
lowered = counting()
import fxpool
x = torch.randn(8, requires_grad=True)
def function(x):
    return (x.sin() * 2).cos().sum()
f = torch.compile(function, backend="fxpool", options={{"max_fusion_size": 32}})
value = f(x)
value.backward()
y = x.detach().clone().requires_grad_()
expected = function(y)
expected.backward()
right = torch.allclose(value, expected) and torch.allclose(x.grad, y.grad)
stats = fxpool.stats()
print("RESULT", json.dumps([right, lowered.count, stats["compiles"], stats["fallbacks"]]))
"""
# Missing where it is imported, where the parent uses it, where a hit is loaded; and nothing at all.
NO_MODULE = "sys.modules['fxpool.torch_compat.dynamo.shape_env'] = None"
NO_NAME = "from fxpool.codecache.graph import graph_codec; del graph_codec.GraphEncoder"
NO_LOADING = "from fxpool.lowering.artifact import load; del load.load_aot"


def run(missing: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM.format(missing=missing)],
        capture_output=True, text=True, timeout=240, check=False, env=environment,
    )  # fmt: skip


def result(done: subprocess.CompletedProcess[str]) -> Any:
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT")] or [done.stderr]
    return json.loads(line.removeprefix("RESULT"))


@pytest.mark.slow
def test_it_is_refused_without_the_variable() -> None:
    done = run("")
    assert done.returncode != 0
    assert "UnsupportedTorchError" in done.stderr and "FXPOOL_UNTESTED_TORCH=1" in done.stderr


@pytest.mark.slow
def test_what_fits_is_compiled_as_ever(shared_pool: object) -> None:
    done = run("", FXPOOL_UNTESTED_TORCH="1")
    right, lowered, compiles, fallbacks = result(done)
    assert right and lowered == 0 and compiles == {"worker": 1, "in_process": 0} and fallbacks == {}
    assert done.stderr.count("is newer than the newest") == 1


@pytest.mark.slow
def test_what_only_one_level_lacks_is_compiled_in_the_process(shared_pool: object) -> None:
    right, lowered, compiles, fallbacks = result(run(NO_LOADING, FXPOOL_UNTESTED_TORCH="1"))
    assert right and lowered == compiles["in_process"] == 2 and fallbacks == {"compile_error:AttributeError": 1}


# Anything that all levels of the chain lack is counted as such.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "reasons"),
    [
        pytest.param(NO_MODULE, {"untested_torch:"}, marks=pytest.mark.slow),
        (NO_NAME, {"compile_error:"}),
    ],
)
def test_what_does_not_fit_is_inductor_s_and_counted(
    shared_pool: object, tmp_path: Path, missing: str, reasons: set[str]
) -> None:
    done = run(missing, FXPOOL_UNTESTED_TORCH="1", TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    right, lowered, _, fallbacks = result(done)
    assert right and lowered >= 1
    assert {reason.rpartition(":")[0] + ":" for reason in fallbacks} == reasons, fallbacks
    assert done.stderr.count("is newer than the newest") == 1


@pytest.mark.slow
def test_strict_raises_it(shared_pool: object) -> None:
    done = run(NO_MODULE, FXPOOL_UNTESTED_TORCH="1", FXPOOL_STRICT="1")
    assert done.returncode != 0 and "shape_env" in done.stderr
