"""Elementwise operations, reductions and attention: graphs of a few operators, which gain most from compiling.

torch is imported inside functions, because the runner imports this module too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fxpool.bench.case import Case

ModelAndInputs = tuple[Callable[..., Any], tuple[Any, ...]]


def pointwise(rows: int = 512, columns: int = 1024) -> ModelAndInputs:
    """A chain of operators; eager writes to memory after each of them."""
    import torch

    return lambda x, y: torch.sigmoid(x * y + 1.0) * torch.tanh(x - y), tuple(torch.randn(2, rows, columns))


def softmax(rows: int = 512, columns: int = 2048) -> ModelAndInputs:
    import torch

    return lambda x: (x * 0.5).softmax(-1), (torch.randn(rows, columns),)


def layer_norm(rows: int = 1024, columns: int = 768) -> ModelAndInputs:
    import torch

    norm = torch.nn.LayerNorm(columns)
    return torch.nn.Sequential(norm, torch.nn.GELU()), (torch.randn(rows, columns),)


def reduction(rows: int = 2048, columns: int = 1024) -> ModelAndInputs:
    import torch

    return lambda x: (x.square().mean(0), x.amax(0), (x > 0).sum(0)), (torch.randn(rows, columns),)


def attention(batch: int = 2, heads: int = 8, length: int = 128, width: int = 64) -> ModelAndInputs:
    import torch

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = torch.nn.Linear(heads * width, 3 * heads * width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.project(x).view(batch, length, 3, heads, width).permute(2, 0, 3, 1, 4)
            scores = (q @ k.transpose(-1, -2) / width**0.5).softmax(-1)
            return (scores @ v).transpose(1, 2).reshape(batch, length, heads * width)

    return Attention(), (torch.randn(batch, length, heads * width),)


def mlp(rows: int = 256, width: int = 512) -> ModelAndInputs:
    import torch

    layers = [
        torch.nn.LayerNorm(width),
        torch.nn.Linear(width, 2 * width),
        torch.nn.GELU(),
        torch.nn.Linear(2 * width, width),
    ]
    return torch.nn.Sequential(*layers), (torch.randn(rows, width),)


CASES = [
    *(Case(make.__name__, make, modes=("inference", "dynamic")) for make in (pointwise, softmax, reduction)),
    *(Case(make.__name__, make, modes=("inference", "training", "dynamic")) for make in (layer_norm, attention, mlp)),
]
