"""`traced_functions` reads Dynamo's counts: functions that ran eagerly, and the switch or the reason for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from fxpool.torch_compat.dynamo.traced_functions import Traced, traced


@pytest.fixture(autouse=True)
def _counters() -> Iterator[None]:
    before = {name: counters[name].copy() for name in counters}
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()
    counters.update(before)


def _compiled(function: Any) -> Any:
    return torch.compile(function, backend="eager")


def test_a_graph() -> None:
    assert traced() == Traced()
    _compiled(lambda x: x + 1)(torch.ones(2))
    assert traced() == Traced(1, 1, 1)


def test_a_function_without_tensors() -> None:
    _compiled(lambda: 3)()
    assert traced() == Traced(1, 1, 0)


def test_a_function_that_is_skipped_and_its_reason() -> None:
    def generates() -> Iterator[int]:
        yield 1

    list(_compiled(generates)())
    counts = traced()
    assert (counts.frames, counts.finished, counts.graphs) == (1, 0, 0)
    assert counts.breaks and all("\n" not in line and "generator" in line for line in counts.breaks)


def test_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.compiler.set_stance("force_eager"):
        _compiled(lambda x: x + 1)(torch.ones(2))
        assert traced() == Traced(off='torch.compiler.set_stance("force_eager")')
    with torch._dynamo.config.patch(disable=True):
        assert traced().off == "torch._dynamo.config.disable"
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    assert traced().off == "TORCHDYNAMO_DISABLE=1"


def test_without_torch() -> None:
    program = "import fxpool, sys; print(fxpool.explain()); assert 'torch' not in sys.modules"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("no graph: Dynamo traced no function in this process")
