"""Strides of results and gradients, and inputs that lie anywhere in memory: as stock Inductor has them, on hits too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from beside_stock import BesideStock
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's doing


def _random(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(len(sizes) + sum(sizes)))


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.norm, self.last = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(self.first(x)).relu()
        return self.last(y), y.permute(0, 2, 3, 1)


def _saved() -> Any:
    return create_selective_checkpoint_contexts([torch.ops.aten.sin.default])


def turned(x: torch.Tensor) -> Any:
    y = x.sin()
    return y.t(), (x * 2)[:, ::2], (y + 1).as_strided((3, 3), (2, 1)), x.cos().unsqueeze(0).expand(3, 6, 8), y[1:, 3]


def padded(x: torch.Tensor) -> Any:
    """Between the two parts, products whose operands are turned."""
    return (x.t() @ x).t() + 1, torch.cat([x.t(), x.t() * 2], 1), torch.empty_like(x.t()).copy_(x.t() + 3)


def after_autograd(x: torch.Tensor) -> Any:
    """A checkpoint of this kind takes a graph to the level after AOTAutograd."""
    y = checkpoint(lambda x: x.sin().t().contiguous().t(), x, use_reentrant=False, context_fn=_saved)
    return y.t() * 2, y.exp()


def _step(x: Callable[[], torch.Tensor]) -> Callable[[Callable[..., Any]], Any]:
    def step(call: Callable[..., Any]) -> Any:
        leaf = x().requires_grad_()
        results = call(leaf)
        sum((one * one).sum() for one in results).backward()
        parameters = list(call.parameters()) if isinstance(call, nn.Module) else []
        return list(results), [leaf.grad, *(one.grad for one in parameters)]

    return step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "x", "graphs"),
    [
        (_Net, lambda: _random(2, 3, 6, 6).to(memory_format=torch.channels_last), 1),
        (turned, lambda: _random(6, 8), 1),
        (padded, lambda: _random(8, 6).t(), 1),
        (after_autograd, lambda: _random(8, 6).t(), 2),
    ],
    ids=["channels last", "turned", "turned input", "after autograd"],
)
def test_strides_are_stock_inductor_s(
    function: Callable[..., Any], x: Callable[[], torch.Tensor], graphs: int, beside_stock: BesideStock
) -> None:
    def compile_(backend: str) -> Any:
        return torch.compile(function() if function is _Net else function, backend=backend)

    beside_stock.agree(compile_, _step(x), graphs=graphs)


# ------------------------------------------------------------------------------ where inputs lie


def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.mul_(2)
    return (x + 1) @ y + x.sin().sum()


def _at(offset: int, *sizes: int) -> torch.Tensor:
    """A tensor whose memory begins so many numbers after an aligned place."""
    count = 1
    for size in sizes:
        count *= size
    return _random(count + 16)[offset : offset + count].view(sizes)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1], ids=["aligned at first", "misaligned at first"])
def test_inputs_that_are_not_aligned(first: int, beside_stock: BesideStock) -> None:
    """The same code serves every place in memory: what it may assume of it is asked at every call."""

    def step(call: Callable[..., Any]) -> Any:
        results = []
        for offset in (first, 1, 3, 0):
            x, y = _at(offset, 16, 16), _at(offset, 16, 16)
            results += [call(x, y), y]
        return results

    _, miss, hit = beside_stock.agree(lambda backend: torch.compile(scaled, backend=backend), step)
    eager = step(scaled)
    torch.testing.assert_close(miss.value, eager, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(hit.value, eager, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_what_may_be_assumed_of_inputs_is_in_the_key(beside_stock: BesideStock) -> None:
    def run() -> dict[str, int]:
        def step(call: Callable[..., Any]) -> Any:
            return call(_at(0, 16, 16), _at(0, 16, 16))

        return beside_stock.fxpool(lambda backend: torch.compile(scaled, backend=backend), step).counts

    assert run() == {"worker": 1, "in_process": 0, "hits": 0}
    with torch._inductor.config.patch(assume_aligned_inputs=True):
        assert run() == {"worker": 1, "in_process": 0, "hits": 0}
        assert run() == {"worker": 0, "in_process": 0, "hits": 1}
    assert run() == {"worker": 0, "in_process": 0, "hits": 1}
