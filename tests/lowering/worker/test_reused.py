"""Programs that are spelled in different ways and lead to equal graphs: the second is not lowered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compiling import compiled, compiled_total
from tiers import first_tier
from torch import nn

import fxpool
from fxpool.codecache.store.store import LocalStore
from fxpool.lowering.artifact.entry_content import content_of

pytestmark = pytest.mark.usefixtures("nothing_lowered_here")


def counts() -> tuple[int, int, int]:
    stats = fxpool.stats()
    assert (stats["fallbacks"], stats["bypasses"], stats["compiles"]["in_process"]) == ({}, {}, 0)
    return stats["compiles"]["worker"], stats["joined"], stats["hits"]


def _x(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))


SPELLINGS: dict[str, list[Callable[[torch.Tensor, torch.Tensor], Any]]] = {
    "keywords": [lambda x, y: x.sum(0) - y, lambda x, y: x.sum(dim=0) - y, lambda x, y: torch.sum(x, (0,)) - y],
    "operators": [lambda x, y: x @ y + 1, lambda x, y: torch.matmul(x, y).add(1), lambda x, y: 1 + x.mm(y)],
    "functions": [lambda x, y: x.relu() * y, lambda x, y: torch.nn.functional.relu(x).mul(y)],
    "writes": [lambda x, y: (x.add_(y), x.t()), lambda x, y: (x.__iadd__(y), torch.transpose(x, 0, 1))],
    "order of inputs": [lambda x, y: x.sin() - y.t(), lambda x, y: torch.sub(torch.sin(x), y.T)],
}


@pytest.mark.parametrize("spelling", first_tier(SPELLINGS, "order of inputs"))
def test_another_spelling_takes_the_code_of_the_first(spelling: str, shared_pool: Path, cache: Path) -> None:
    for number, function in enumerate(SPELLINGS[spelling]):
        outcomes = []
        for call in (function, torch.compile(function, backend="fxpool")):
            torch._dynamo.reset()
            x, y = _x(6, 6), _x(6, 6, 1)[..., 0].t()
            outcomes.append((call(x, y), x, y))
        torch.testing.assert_close(*outcomes)
        assert counts() == (1, number, 0)


@pytest.mark.slow
def test_the_second_spelling_has_an_entry_of_its_own(shared_pool: Path, cache: Path) -> None:
    one, other, _ = SPELLINGS["keywords"]
    for function in (one, other, other):
        compiled(function, _x(4, 6), _x(6))
    assert counts() == (1, 1, 1)
    entries = [one.entry for one in LocalStore(str(cache)).scan() if one.entry is not None]
    assert len({entry.key for entry in entries}) == 2
    assert len({entry.blobs["kernels"] for entry in entries}) == 1
    assert len({tuple(content_of(entry).graphs) for entry in entries}) == 1


class Layers(nn.Module):
    def __init__(self, spelling: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 6)
        self.spelling = spelling

    def forward(self, x: torch.Tensor) -> Any:
        y = self.one(x)
        if self.spelling:
            return torch.tanh(self.other(y.sin()).sub(y)), y.mean(dim=-1)
        return (self.other(torch.sin(y)) - y).tanh(), y.mean(-1)


def steps(module: nn.Module, call: Callable[..., Any], x: torch.Tensor) -> list[Any]:
    module.zero_grad()
    leaf = x.clone().requires_grad_()
    results = call(leaf)
    sum((one * one).sum() for one in results).backward()
    return [*results, leaf.grad, *(one.grad for one in module.parameters())]


def test_forward_and_backward_are_taken_together(shared_pool: Path, cache: Path) -> None:
    for spelling in (0, 1):
        torch._dynamo.reset()
        module = Layers(spelling)
        found, expected = (
            steps(module, torch.compile(module, backend="fxpool"), _x(3, 6)),
            steps(module, module, _x(3, 6)),
        )
        torch.testing.assert_close(found, expected)
        assert counts() == (1, spelling, 0)


def test_an_equal_forward_with_another_backward_is_compiled(shared_pool: Path, cache: Path) -> None:
    for function in (lambda x: x * x, lambda x: x * x.detach()):
        gradients = []
        for call in (function, torch.compile(function, backend="fxpool")):
            torch._dynamo.reset()
            x = _x(4, 6).requires_grad_()
            call(x).sum().backward()
            gradients.append(x.grad)
        torch.testing.assert_close(*gradients)
    assert counts() == (2, 0, 0)
    entries = [one.entry for one in LocalStore(str(cache)).scan() if one.entry is not None]
    forward, backward = (set(graphs) for graphs in zip(*(content_of(entry).graphs for entry in entries), strict=True))
    assert (len(forward), len(backward)) == (1, 2), "otherwise this test shows nothing"


def spelled(x: torch.Tensor) -> torch.Tensor:
    """`compiling.total` in other words."""
    return torch.sum(torch.softmax(torch.layer_norm(x, [x.size(-1)]), dim=-1), dim=0)


@pytest.mark.slow
def test_guards_of_the_first_hold_for_the_second(shared_pool: Path, cache: Path) -> None:
    compiled_total(4, 100)
    compiled_total(6, 5000, spelled)
    assert counts() == (2, 0, 0), "the length of the reduction has a guard"
    compiled_total(4, 200, spelled)
    assert counts()[:2] in ((2, 1), (3, 0)), "of several entries, the last is recorded"
    before = counts()
    compiled_total(5, 300, spelled)
    compiled_total(4, 6000, spelled)
    assert counts() == (*before[:2], before[2] + 2)


@pytest.mark.slow
def test_an_entry_that_is_gone_is_compiled(shared_pool: Path, cache: Path) -> None:
    one, other, _ = SPELLINGS["keywords"]
    compiled(one, _x(4, 6), _x(6))
    store = LocalStore(str(cache))
    for stored in store.scan():
        store.remove(stored.key, stored.name)
    compiled(other, _x(4, 6), _x(6))
    assert counts() == (2, 0, 0)


@pytest.mark.slow
def test_other_options_are_other_graphs(shared_pool: Path, cache: Path) -> None:
    one, other, _ = SPELLINGS["keywords"]
    compiled(one, _x(4, 6), _x(6))
    compiled(other, _x(4, 6), _x(6), epilogue_fusion=False)
    compiled(other, _x(4, 7), _x(7))
    assert counts() == (3, 0, 0)
