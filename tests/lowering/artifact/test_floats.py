"""Numbers that Dynamo takes for inputs: floats that change, or that any size is asked for with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiers import first_tier
from torch._dynamo.utils import counters

import fxpool

pytestmark = pytest.mark.usefixtures("nothing_lowered_here")

X = torch.randn(5, 6, generator=torch.Generator().manual_seed(3))


def scaled(x: torch.Tensor, a: float, b: int) -> Any:
    return (x * a).sin() + b, a * 2


def branches(x: torch.Tensor, a: float) -> Any:
    return x.sin() * a if a > 1.0 else x.cos() - a


def filled(x: torch.Tensor, a: float) -> Any:
    """Where stock Inductor of 2.13 burns the first value in, and guards on nothing."""
    return torch.full_like(x, a) + torch.nn.functional.leaky_relu(x, a) + x.clamp(min=a)


def sized(x: torch.Tensor, a: float) -> Any:
    return x.repeat(1, int(a * 2)).sum(1) * a


CALLS: list[tuple[Callable[..., Any], list[tuple[Any, ...]], bool | None]] = [
    (scaled, [(1.5, 2), (2.5, 3), (3.25, 4), (0.1, 5), (-1.0, 8)], None),
    (branches, [(1.5,), (2.5,), (0.5,), (0.25,), (1.0,), (3.0,)], True),
    (filled, [(1.5,), (2.5,), (0.5,)], True),
    (sized, [(1.5,), (2.5,), (1.75,)], True),
]


def _called(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], dynamic: bool | None) -> dict[str, Any]:
    torch._dynamo.reset()
    counters.clear()
    before = fxpool.stats()
    compiled = torch.compile(function, backend="fxpool", dynamic=dynamic)
    for numbers in calls:
        torch.testing.assert_close(compiled(X, *numbers), function(X, *numbers))
    after = fxpool.stats()
    assert (after["fallbacks"], after["bypasses"], after["eager_calls"]) == ({}, {}, {})
    return {
        "worker": after["compiles"]["worker"] - before["compiles"]["worker"],
        "hits": after["hits"] - before["hits"],
        "graphs": counters["stats"]["unique_graphs"],
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "calls", "dynamic"), first_tier(CALLS, CALLS[0], CALLS[1]), ids=[one.__name__ for one, *_ in CALLS]
)
def test_floats_that_change(
    function: Callable[..., Any], calls: list[tuple[Any, ...]], dynamic: bool | None, shared_pool: Path, cache: Path
) -> None:
    first = _called(function, calls, dynamic)
    assert first["worker"] >= first["graphs"] and first["hits"] == 0
    again = _called(function, calls, dynamic)
    assert again["worker"] == 0 and again["hits"] >= again["graphs"]


def test_a_number_that_no_operation_depends_on_is_traced_once(shared_pool: Path, cache: Path) -> None:
    """Another one for each value, and the cache would be of no use."""
    assert _called(branches, [(1.5,), (2.5,), (3.5,), (4.5,)], True)["graphs"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("training", first_tier([False, True], True))
def test_settings_of_modules_are_numbers_too(training: bool, shared_pool: Path, cache: Path) -> None:
    """With ``dynamic=True`` a layer's ``eps`` is an input, until somebody asks for its value."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.Linear(16, 16), torch.nn.GELU())

    def step(called: Callable[..., Any], x: torch.Tensor) -> list[Any]:
        module.zero_grad()
        with torch.set_grad_enabled(training):
            y = called(x)
        if training:
            y.square().sum().backward()
        return [y.detach(), *(one.grad.clone() for one in module.parameters() if one.grad is not None)]

    for again in (False, True):
        torch._dynamo.reset()
        before = fxpool.stats()
        compiled = torch.compile(module, backend="fxpool", dynamic=True)
        for rows in (8, 5):
            x = torch.randn(rows, 16)
            torch.testing.assert_close(step(compiled, x), step(module, x))
        module[0].eps = 0.5
        torch.testing.assert_close(step(compiled, x), step(module, x))
        module[0].eps = 1e-5
        after = fxpool.stats()
        assert (after["fallbacks"], after["bypasses"]) == ({}, {})
        assert (after["compiles"]["worker"] == before["compiles"]["worker"]) == again
        assert (after["hits"] > before["hits"]) == again


@pytest.mark.slow
def test_floats_that_change_under_code_that_came_later(shared_pool: Path, cache: Path) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(branches, backend="fxpool", dynamic=True, options={"mode": "async+subprocess"})
    for a in (1.5, 2.5, 0.5, 3.5, 0.25):
        torch.testing.assert_close(compiled(X, a), branches(X, a))
        assert {one["state"] for one in fxpool.wait(100)} == {"ready"}
        torch.testing.assert_close(compiled(X, a), branches(X, a))
    assert fxpool.stats()["compiles"] == {"worker": 2, "in_process": 0}
    assert sum(one["compiled_calls"] for one in fxpool.stats()["background"]) >= 7
