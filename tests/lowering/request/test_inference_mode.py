"""Graphs that are compiled and called under inference mode: results, and which of them are inference tensors, as stock.

Dynamo turns the mode off while it compiles, and graphs of such calls are those of ``no_grad``. A program that calls
Inductor directly compiles under it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from beside_stock import BesideStock
from tiers import first_tier
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

import fxpool

Tensors = dict[str, Callable[[], torch.Tensor]]


def _base() -> torch.Tensor:
    return torch.linspace(-1, 1, 24).reshape(4, 6)


def _inference(make: Callable[[], torch.Tensor] = _base) -> torch.Tensor:
    with torch.inference_mode():
        return make()


def _view_of_plain() -> torch.Tensor:
    base = _base()
    with torch.inference_mode():
        return base[:, 1:5]


#: Inputs by their origin. All are made outside of the call.
INPUTS: Tensors = {
    "plain": _base,
    "with gradients": lambda: _base().requires_grad_(),
    "inference": _inference,
    "view of an inference tensor": lambda: _inference(lambda: _base()[:, 1:5]),
    "view of a plain tensor": _view_of_plain,
    "view made outside": lambda: _base().t()[1:5],
}


class Layer(torch.nn.Module):
    """A layer for any of `INPUTS`, which counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = torch.nn.Parameter(torch.rand(3))
        self.register_buffer("calls", torch.zeros(()))
        self.shift = torch.rand(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return (x.sum() * self.scale + self.shift).relu() * self.calls


def _written(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x.exp()


def _views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x + 1
    return x, x.t(), x[1:], y.t(), y, torch.ones(3), torch.tensor([1.5, 2.5])


def _written_view(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    view = x.view(-1) if x.is_contiguous() else x.t()
    view.add_(1)
    return view, x * 2


FUNCTIONS: dict[str, Callable[[], Callable[..., Any]]] = {
    "layer": Layer,
    "layer made in inference mode": lambda: torch.inference_mode()(Layer)(),
    "written": lambda: _written,
    "views": lambda: _views,
    "written view": lambda: _written_view,
}


#: (function, input, whether sizes are symbols)
CASES = [
    ("layer", "inference", False),
    ("layer", "with gradients", True),
    ("layer made in inference mode", "plain", False),
    ("written", "plain", False),
    ("written", "inference", True),
    ("written", "view of an inference tensor", False),
    ("written", "view of a plain tensor", False),
    ("views", "inference", True),
    ("views", "view made outside", False),
    ("written view", "inference", False),
    ("written view", "plain", True),
]


def _kinds(value: Any) -> list[tuple[bool, bool, bool]]:
    tensors = [one for one in torch.utils._pytree.tree_leaves(value) if isinstance(one, torch.Tensor)]
    return [(one.is_inference(), one.requires_grad, one._is_view()) for one in tensors]


def _called(make: Callable[[], torch.Tensor], state: Callable[[], AbstractContextManager[Any]]) -> Callable[..., Any]:
    """The step of calling something twice with an input; the input afterwards is part of the result."""

    def step(call: Callable[..., Any]) -> Any:
        x = make()
        with state():
            results = [call(x) for _ in range(2)]
        with torch.inference_mode():
            return [*results, x.clone()], _kinds(results)

    return step


@pytest.mark.parametrize(
    ("function", "origin", "dynamic"),
    first_tier(CASES, ("layer", "inference", False)),
)
def test_calls_are_stocks(function: str, origin: str, dynamic: bool, beside_stock: BesideStock) -> None:
    def compiled(backend: str) -> Callable[..., Any]:
        return torch.compile(FUNCTIONS[function](), backend=backend, dynamic=dynamic)

    step = _called(INPUTS[origin], torch.inference_mode)
    try:
        expected = beside_stock.stock(compiled, step)
    except RuntimeError as error:  # torch refuses to write to it
        with pytest.raises(RuntimeError, match=re.escape(str(error).splitlines()[0])):
            beside_stock.fxpool(compiled, step)
        return
    for counts in ({"worker": 1, "hits": 0}, {"worker": 0, "hits": 1}):
        found = beside_stock.fxpool(compiled, step)
        torch.testing.assert_close(found.value[0], expected.value[0])
        assert found.value[1] == expected.value[1]
        assert found.counts == {"in_process": 0, **counts}, fxpool.stats()["graphs"]
    assert not fxpool.stats()["fallbacks"]


def test_a_graph_of_no_grad_is_served_with_results_of_the_mode(beside_stock: BesideStock) -> None:
    """Dynamo compiles both alike; which tensors are inference tensors depends on the call."""

    def compiled(backend: str) -> Callable[..., Any]:
        return torch.compile(Layer(), backend=backend)

    for state, compiles in ((torch.no_grad, 1), (torch.inference_mode, 0), (torch.enable_grad, 1)):
        step = _called(_base, state)
        expected, found = beside_stock.stock(compiled, step), beside_stock.fxpool(compiled, step)
        assert found.value[1] == expected.value[1]
        assert found.counts == {"worker": compiles, "in_process": 0, "hits": 1 - compiles}


@pytest.mark.parametrize("mode", [pytest.param(one, marks=pytest.mark.slow) for one in ("async", "progressive+async")])
def test_compiles_in_the_background(mode: str, shared_pool: Path, cache: Path, own_background: None) -> None:
    layer, other = Layer(), Layer()
    compiled = torch.compile(layer, backend="fxpool", options={"mode": f"{mode}+subprocess"})
    x = _inference()
    with torch.inference_mode():
        for _ in range(2):
            for _ in range(2):
                found, expected = compiled(x), other(x)
                torch.testing.assert_close(found, expected)
                assert found.is_inference()
            assert [row["state"] for row in fxpool.wait(120)] == ["ready"]
    assert not fxpool.stats()["fallbacks"]


# ---------------------------------------------------------------- direct calls


@pytest.fixture
def graph() -> torch.fx.GraphModule:
    """A graph whose nodes have their values, as Dynamo's have."""
    weight = torch.nn.Parameter(torch.rand(6, 6))

    def function(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.nn.functional.linear(x, weight)
        return y.exp(), y.t(), x.view(-1)

    made = torch.fx.symbolic_trace(function)
    with torch.no_grad():
        FakeTensorProp(made).propagate(_base(), weight)
    for node in made.graph.nodes:
        node.meta["example_value"] = node.meta.pop("val", None)
    return made


def _directly(graph: torch.fx.GraphModule, x: torch.Tensor, weight: torch.Tensor) -> Any:
    return torch._inductor.standalone_compile(graph, [x, weight], dynamic_shapes="from_example_inputs")(x, weight)


def _by_us(graph: torch.fx.GraphModule, x: torch.Tensor, weight: torch.Tensor) -> Any:
    return fxpool.standalone_compile(graph, [x, weight])(x, weight)


@pytest.mark.parametrize("compiling", [_directly, _by_us])
@pytest.mark.parametrize("origin", ["inference", pytest.param("plain", marks=pytest.mark.slow)])
def test_direct_calls_are_compiled_in_the_mode_by_workers(
    compiling: Callable[..., Any],
    origin: str,
    graph: torch.fx.GraphModule,
    cache: Path,
    shared_pool: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that compiles for sizes as they come does so: it serves under inference mode."""
    x, weight = INPUTS[origin](), torch.nn.Parameter(torch.rand(6, 6))
    with torch.inference_mode(), torch._inductor.config.patch(force_disable_caches=True):
        expected = _directly(graph, x, weight)
    monkeypatch.setenv("TORCHINDUCTOR_FX_COMPILE_MODE", "subprocess")
    fxpool.install()
    try:
        counts: list[tuple[int, int]] = []
        # The last is in a state that the entry is not for.
        for state in (torch.inference_mode, torch.inference_mode, torch.no_grad):
            before = fxpool.stats()
            monkeypatch.setenv(
                "TORCHINDUCTOR_CACHE_DIR", str(tmp_path / f"i{len(counts)}")
            )  # torch's own would have it
            with state():
                found = compiling(graph, x.clone() if state is torch.no_grad else x, weight)
            after = fxpool.stats()
            torch.testing.assert_close(list(found), list(expected))
            if state is torch.inference_mode:
                assert _kinds(found) == _kinds(expected)
            counts.append((after["compiles"]["worker"] - before["compiles"]["worker"], after["hits"] - before["hits"]))
        assert counts == [(1, 0), (0, 1), (1, 0)]
        assert not fxpool.stats()["fallbacks"] and not fxpool.stats()["compiles"]["in_process"]
    finally:
        fxpool.uninstall()
