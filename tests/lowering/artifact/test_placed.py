"""Inputs that are slices of larger tensors: one entry for all, unless the graph can see where a slice lies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from capturing import components_of
from compiling import compiled
from tiers import first_tier

import fxpool

pytestmark = pytest.mark.usefixtures("cache", "nothing_lowered_here")


def _buffer(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(64, generator=torch.Generator().manual_seed(5)).to(dtype)


#: Slices of 4 x 6 elements of `_buffer`, aligned and not, transposed and not; the first is a tensor of its own.
SLICES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda buffer: buffer[:24].clone().view(4, 6),
    lambda buffer: buffer[:24].view(4, 6),
    lambda buffer: buffer[16:40].view(4, 6),
    lambda buffer: buffer[21:45].view(4, 6),
    lambda buffer: buffer[40:].detach()[:24].view(4, 6),
]


def views(x: torch.Tensor) -> Any:
    return x[1:], x.t(), x.view(-1)[2:9], x.sin()


def writes(x: torch.Tensor) -> Any:
    x[1:].add_(1)
    return x[:, 2:], x * 2


def turns(x: torch.Tensor) -> Any:
    x.t_()
    return x + 1


@pytest.mark.parametrize("function", first_tier([views, writes, turns], views))
def test_slices_share_an_entry_and_results_lie_where_eager_ones_do(
    function: Callable[..., Any], shared_pool: Path
) -> None:
    for made in SLICES:
        outcome: list[tuple[Any, Any, Any]] = []
        for call in (function, torch.compile(function, backend="fxpool")):
            torch._dynamo.reset()
            buffer = _buffer()
            x = made(buffer)
            results = call(x)
            results = results if isinstance(results, tuple) else (results,)
            places = [
                (one.storage_offset(), one.stride(), one.untyped_storage().data_ptr() == x.untyped_storage().data_ptr())
                for one in results
            ]
            outcome.append(([*results, x, buffer], places, x.stride()))
        (expected, places, strides), (found, other_places, other_strides) = outcome
        torch.testing.assert_close(found, expected)
        assert (other_places, other_strides) == (places, strides)
    stats = fxpool.stats()
    assert (stats["hits"], stats["compiles"]["worker"]) == (len(SLICES) - 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("write", [False, True])
def test_slices_in_training(write: bool, shared_pool: Path) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        if write:
            y.mul_(x.detach())
        return (x.t() @ y).sin(), x[1:], y * x

    for made in SLICES:
        outcome = []
        for call in (function, torch.compile(function, backend="fxpool")):
            torch._dynamo.reset()
            x, y = made(_buffer()).requires_grad_(), made(_buffer() + 1)
            results = call(x, y)
            sum((one * one).sum() for one in results).backward()
            outcome.append([*results, x.grad, x.detach(), y])
        torch.testing.assert_close(*outcome)
    stats = fxpool.stats()
    assert (stats["hits"], stats["compiles"]["worker"]) == (len(SLICES) - 1, 1)


def strided(x: torch.Tensor) -> Any:
    return x.as_strided((2, 3), (3, 1)) + 1


def from_the_start(x: torch.Tensor) -> Any:
    return torch.as_strided(x, (2, 3), (3, 1), 4) + 1


def in_bits(x: torch.Tensor) -> Any:
    return x.view(torch.int16) + 1


def as_complex(x: torch.Tensor) -> Any:
    return torch.view_as_complex(x.view(4, 3, 2)) * 2


def inputs_of(function: Callable[..., Any], *slices: Callable[[torch.Tensor], torch.Tensor]) -> set[str]:
    return {components_of(function, made(_buffer()))["inputs"] for made in slices}


@pytest.mark.parametrize("function", [strided, from_the_start, in_bits, as_complex])
def test_graphs_that_can_see_a_place_have_a_key_for_each(function: Callable[..., Any]) -> None:
    slices = (SLICES[0], SLICES[2], lambda buffer: buffer[22:46].view(4, 6))
    assert len(inputs_of(function, *slices)) == len(slices)
    assert len(inputs_of(views, *slices)) == 1


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
@pytest.mark.slow
@pytest.mark.parametrize("function", [strided, in_bits, as_complex])
def test_what_they_see_is_right(function: Callable[..., Any], shared_pool: Path) -> None:
    for made in (SLICES[0], SLICES[2], lambda buffer: buffer[22:46].view(4, 6)):
        compiled(function, made(_buffer()))


def test_inputs_that_share_memory_keep_their_places() -> None:
    def add(a: torch.Tensor, b: torch.Tensor) -> Any:
        a.add_(1)
        return a * b

    def inputs(first: int, second: int) -> str:
        buffer = _buffer()
        return components_of(add, buffer[first : first + 8], buffer[second : second + 8])["inputs"]

    assert len({inputs(0, 8), inputs(8, 16), inputs(0, 4), inputs(4, 8)}) == 4


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_slices_that_autograd_follows_keep_their_places() -> None:
    def leaf(start: int) -> torch.Tensor:
        return (_buffer().requires_grad_() * 2)[start : start + 8]

    def detached(start: int) -> torch.Tensor:
        return leaf(start).detach()

    for made, keys in ((leaf, 2), (detached, 1)):
        assert len({components_of(lambda x: x * 2, made(start))["inputs"] for start in (0, 8)}) == keys
