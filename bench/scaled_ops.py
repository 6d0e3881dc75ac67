"""Custom operators of the benchmarks: `proven` has a backward that fxpool can prove, that of `listed` reads a list."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["OPERATORS"]

FACTORS = [1.0]


@torch.library.custom_op("fxpool_bench::proven", mutates_args=())
def proven(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@torch.library.custom_op("fxpool_bench::listed", mutates_args=())
def listed(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


def _fake(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.factor = inputs[1]


def _proven_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    return grad * ctx.factor, None


def _listed_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    return grad * ctx.factor * FACTORS[0], None


OPERATORS = {"proven": proven, "listed": listed}
for _name, _backward in (("proven", _proven_backward), ("listed", _listed_backward)):
    OPERATORS[_name].register_fake(_fake)
    OPERATORS[_name].register_autograd(_backward, setup_context=_setup)
