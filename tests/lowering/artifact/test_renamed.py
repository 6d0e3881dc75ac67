"""Graphs that differ in names only share their code. Values that a mix-up would exchange differ."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compiling import compiled
from tiers import first_tier
from torch import nn

import fxpool

pytestmark = pytest.mark.usefixtures("cache", "nothing_lowered_here")


def function(text: str) -> Callable[..., Any]:
    space: dict[str, Any] = {"torch": torch}
    exec(text, space)
    made = space["run"]
    assert isinstance(made, types.FunctionType)
    return made


def _random(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed + sum(sizes)))


# In the second of each pair, names sort the other way round.
PAIRS = {
    "locals": (
        "def run(x, y):\n    a = x.t() @ y\n    b = a - x.sum(0)\n    return b.sin(), a * 2",
        "def run(x, y):\n    z = x.t() @ y\n    c = z - x.sum(0)\n    return c.sin(), z * 2",
    ),
    "arguments": (
        "def run(a, b):\n    return a - b.t() * 2, b.t().contiguous().cos()",
        "def run(z, c):\n    return z - c.t() * 2, c.t().contiguous().cos()",
    ),
    "functions": (
        "from torch.utils.checkpoint import checkpoint\n"
        "def run(x, y):\n"
        "    def a(u, v):\n        w = u.sin()\n        return w - v.t()\n"
        "    return checkpoint(a, x, y, use_reentrant=False) * 2",
        "from torch.utils.checkpoint import checkpoint\n"
        "def run(p, o):\n"
        "    def part(n, m):\n        k = n.sin()\n        return k - m.t()\n"
        "    return checkpoint(part, p, o, use_reentrant=False) * 2",
    ),
}


@pytest.mark.parametrize("pair", first_tier(PAIRS, "locals"))
def test_names_of_variables_and_arguments(pair: str, shared_pool: Path) -> None:
    x, y = _random(6, 6), _random(6, 6, seed=1)
    for text in PAIRS[pair]:
        compiled(function(text), x.t(), y)
    stats = fxpool.stats()
    assert (stats["misses"], stats["hits"], stats["compiles"]["worker"]) == (1, 1, 1)


class Pair(nn.Module):
    def __init__(self, one: str, other: str) -> None:
        super().__init__()
        self._names = one, other
        for number, name in enumerate(self._names):
            setattr(self, name, nn.Linear(6, 6, bias=False))
            nn.init.constant_(getattr(self, name).weight, 0.25 + number)
            self.register_buffer(f"{name}_scale", torch.tensor(3.0 + number))

    def forward(self, x: torch.Tensor) -> Any:
        one, other = (getattr(self, name) for name in self._names)
        scales = [getattr(self, f"{name}_scale") for name in self._names]
        return (other(x) * scales[1] - one(x).sin() * scales[0]).tanh()


def test_names_of_modules_parameters_and_buffers_in_training(shared_pool: Path) -> None:
    x = _random(3, 6) / 10
    for names in (("a", "b"), ("z", "c")):
        module = Pair(*names)
        gradients = []
        for call in (module, torch.compile(module, backend="fxpool")):
            torch._dynamo.reset()
            leaf = x.clone().requires_grad_()
            module.zero_grad()
            y = call(leaf)
            y.square().sum().backward()
            gradients.append([y, leaf.grad, *(one.grad for one in module.parameters())])
        torch.testing.assert_close(*gradients)
    stats = fxpool.stats()
    assert (stats["misses"], stats["hits"], stats["compiles"]["worker"]) == (1, 1, 1)


def of_own_attributes(names: list[str], used: list[int], tree: list[int]) -> torch.fx.GraphModule:
    """A graph that subtracts its attributes in the order `used`; they are registered in the order `tree`."""
    root = nn.Module()
    for number in tree:
        path, _, leaf = names[number].rpartition(".")
        if path and not hasattr(root, path):
            root.add_module(path, nn.Module())
        value = torch.full((4,), 1.0 + number)
        owner = root.get_submodule(path)
        if number % 2:
            owner.register_buffer(leaf, value)
        else:
            owner.register_parameter(leaf, nn.Parameter(value, requires_grad=False))
    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    for number in used:
        value = graph.call_function(
            torch.sub, (graph.call_function(torch.mul, (value, 2)), graph.get_attr(names[number]))
        )
    graph.output((value,))
    gm = torch.fx.GraphModule(nn.Module(), torch.fx.Graph())
    for name, child in root.named_children():
        gm.add_module(name, child)
    for name, parameter in root.named_parameters(recurse=False):
        gm.register_parameter(name, parameter)
    for name, buffer in root.named_buffers(recurse=False):
        gm.register_buffer(name, buffer)
    gm.graph = graph
    return gm


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [["a", "b", "c", "d"], ["m.a", "n.a", "o.a", "p.a"], ["m.a", "m_a", "n.a", "n_a"], ["m.a", "m.b", "n.a", "n.b"]],
)
def test_parameters_are_passed_in_the_order_of_their_modules(names: list[str], shared_pool: Path) -> None:
    """The order of their use, or of their names, may be another."""
    x = _random(4)
    for called in (names, [name[::-1] if "." not in name else f"z{name}" for name in names]):
        for used, tree in (([2, 0, 3, 1], [0, 1, 2, 3]), ([0, 1, 2, 3], [3, 2, 0, 1])):
            gm = of_own_attributes(called, used, tree)
            torch.testing.assert_close(fxpool.standalone_compile(gm, [x])(x), gm(x))
    assert fxpool.stats()["compiles"] == {"worker": 2, "in_process": 0}
