"""Graphs with parts that a worker has to be told of first: compiled there, found again, and right."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxpool

pytestmark = pytest.mark.usefixtures("cache", "nothing_lowered_here")

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(3))
WEIGHT, TARGET = torch.linspace(-1, 1, 96).reshape(12, 8), torch.arange(6)


def hooked(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y.register_hook(lambda gradient: gradient * 2)
    return y * 3


def quantized(x: torch.Tensor) -> Any:
    """Torch has these operators only once their module is imported."""
    operators = torch.ops.quantized_decomposed
    whole = operators.quantize_per_tensor(x, 0.1, 3, -128, 127, torch.int8)
    return operators.dequantize_per_tensor(whole, 0.1, 3, -128, 127, torch.int8).relu() + 1


def chunked_loss(x: torch.Tensor) -> torch.Tensor:
    """Torch makes this operator with `custom_op`, in a module that it imports with the first loss."""
    from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions  # new in 2.13

    loss: Any = torch.nn.functional.linear_cross_entropy  # type: ignore[attr-defined, unused-ignore]
    return loss(x, WEIGHT, TARGET, options=LinearCrossEntropyOptions(allow_retain_graph=True))


def _jagged() -> torch.Tensor:
    parts = [torch.randn(rows, 8, generator=torch.Generator().manual_seed(rows)) for rows in (3, 5)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)


def ragged(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2).values()


def step(call: Callable[..., Any], x: torch.Tensor) -> list[torch.Tensor]:
    made = call(x)
    if not made.requires_grad:
        return [made]
    made.sum().backward()
    gradient = x.grad
    assert gradient is not None
    return [made.detach(), gradient.values() if gradient.is_nested else gradient]


def in_next_process(function: Callable[..., Any], x: Callable[[], torch.Tensor]) -> dict[str, Any]:
    torch._dynamo.reset()
    before = fxpool.stats()
    torch.testing.assert_close(step(torch.compile(function, backend="fxpool"), x()), step(function, x()))
    after = fxpool.stats()
    return {
        "worker": after["compiles"]["worker"] - before["compiles"]["worker"],
        "in process": after["compiles"]["in_process"] - before["compiles"]["in_process"],
        "hits": after["hits"] - before["hits"],
        "fallbacks": sorted(set(after["fallbacks"]) - set(before["fallbacks"])),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "x", "graphs", "fallbacks"),
    [
        (hooked, lambda: X.clone().requires_grad_(), 1, []),
        (quantized, lambda: X, 1, []),
        (chunked_loss, lambda: X.clone().requires_grad_(), 1, []),
        (ragged, _jagged, 2, ["tensor"]),  # by its parts, as AOTAutograd takes it
    ],
    ids=["hooked", "quantized", "chunked loss", "ragged"],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's doing, in 2.11
def test_it_is_compiled_in_a_worker_and_found_again(
    function: Callable[..., Any], x: Callable[[], torch.Tensor], graphs: int, fallbacks: list[str]
) -> None:
    if function is quantized:
        importlib.import_module("torch.ao.quantization.fx._decomposed")
    if function is chunked_loss:
        pytest.importorskip("torch.nn.modules.linear_cross_entropy_options")
    first = {"worker": graphs, "in process": 0, "hits": 0, "fallbacks": fallbacks}
    assert in_next_process(function, x) == first
    assert in_next_process(function, x) == {"worker": 0, "in process": 0, "hits": graphs, "fallbacks": []}


@pytest.mark.slow
def test_other_ragged_sizes_are_served_the_same_code() -> None:
    """Neither the number of rows nor how they are divided is in it."""
    torch._dynamo.reset()
    compiled = torch.compile(ragged, backend="fxpool")
    for rows in ((3, 5), (2, 9), (4, 4)):
        parts = [torch.randn(count, 8) for count in rows]
        jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
        torch.testing.assert_close(compiled(jagged), ragged(jagged))
    assert fxpool.stats()["compiles"]["in_process"] == 0
