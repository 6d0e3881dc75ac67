"""Hooks for saved tensors around compiled code: those of checkpoints and offloading, and those that are graphs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import fxpool


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))


def gradients(model: torch.nn.Module, run: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(1)
    run(torch.randn(6, 8, requires_grad=True)).square().mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def under(hooks: Callable[[], AbstractContextManager[Any]], function: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def call(x: torch.Tensor) -> torch.Tensor:
        with hooks():
            return function(x)

    return call


AROUND: dict[str, Callable[[Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "checkpoint": lambda function: lambda x: checkpoint(function, x, use_reentrant=False),
    "save_on_cpu": lambda function: under(save_on_cpu, function),
    "functions": lambda function: under(lambda: saved_tensors_hooks(lambda t: t * 1, lambda t: t * 1), function),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", AROUND)
def test_hooks_that_run_around_the_code_do_not_keep_a_graph_from_its_worker(
    name: str, shared_pool: Path, cache: Path
) -> None:
    torch._dynamo.reset()
    model, around = network(), AROUND[name]
    expected = gradients(model, around(model))
    run = around(torch.compile(model, backend="fxpool", options={"strict": True}))
    for _ in range(2):
        for one, other in zip(gradients(model, run), expected, strict=True):
            torch.testing.assert_close(one, other)
    stats = fxpool.stats()
    assert (stats["compiles"], stats["fallbacks"]) == ({"worker": 1, "in_process": 0}, {})
    # Without hooks it is the same graph.
    torch._dynamo.reset()
    plain = torch.compile(model, backend="fxpool")
    for one, other in zip(gradients(model, plain), gradients(model, model), strict=True):
        torch.testing.assert_close(one, other)
    assert fxpool.stats()["hits"] == 1


@pytest.mark.slow
def test_hooks_that_are_compiled_into_the_graph_step_down(shared_pool: Path, cache: Path) -> None:
    torch._dynamo.reset()
    model = network()
    pack = torch.fx.symbolic_trace(lambda t: t * 2)
    unpack = torch.fx.symbolic_trace(lambda t: t / 2)
    expected = gradients(model, model)
    run = under(lambda: saved_tensors_hooks(pack, unpack), torch.compile(model, backend="fxpool"))
    for one, other in zip(gradients(model, run), expected, strict=True):
        torch.testing.assert_close(one, other)
    assert fxpool.stats()["fallbacks"].get("saved_tensor_hooks") == 1
