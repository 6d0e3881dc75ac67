"""Graphs of every form: what Dynamo never makes and who calls the back end himself may hand over; exported programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from beside_stock import BesideStock
from torch import fx, nn

import fxpool

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # torch's own, of its tree specs
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
Y = torch.randn(6, generator=torch.Generator().manual_seed(4))


def _traced(function: Callable[..., Any], *inputs: Any) -> fx.GraphModule:
    gm = fx.symbolic_trace(function)
    leaves = torch.utils._pytree.tree_leaves(inputs)
    if gm.graph._codegen.__class__ is fx.graph.CodeGen and len(leaves) == len(inputs):
        fx.passes.shape_prop.ShapeProp(gm).propagate(*inputs)
    return gm


def single(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.sin() + y


def a_dict(x: torch.Tensor, y: torch.Tensor) -> Any:
    return {"first": x + y, "rest": {"second": [x * 2, y.exp()]}}


def nested(x: torch.Tensor, y: torch.Tensor) -> Any:
    return [x.cos(), (y + 1, {"third": x * y}), None]


def nothing(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (None, None)


def inputs_and_numbers(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (x, x + 1, y, 3, None)


def several_of_one(x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.ops.aten.native_layer_norm.default(x + 1, [6], y, y, 1e-5)


def _called(gm: Callable[[], fx.GraphModule], *examples: Any) -> Callable[[str], Callable[..., Any]]:
    """Compiles as who calls a back end himself does: no Dynamo behind it."""

    def compile_(backend: str) -> Callable[..., Any]:
        made: Callable[..., Any] = torch._dynamo.lookup_backend(backend)(gm(), list(examples))
        return made

    return compile_


@pytest.mark.slow
@pytest.mark.parametrize("function", [single, a_dict, inputs_and_numbers, several_of_one])
def test_results_of_every_form(function: Callable[..., Any], beside_stock: BesideStock) -> None:
    beside_stock.agree(_called(lambda: _traced(function, X, Y), X, Y), lambda call: call(X, Y))


@pytest.mark.parametrize(
    "form", [lambda values: values[0], lambda values: {"of": list(values)}], ids=["single", "dict"]
)
def test_graphs_that_a_back_end_changes(form: Callable[[Any], Any], shared_pool: Path, cache: Path) -> None:
    """Dynamo is behind them: AOTAutograd runs in the worker, as for Dynamo's own."""

    def changed(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        (output,) = gm.graph.find_nodes(op="output")
        output.args = (form(output.args[0]),)
        gm.recompile()
        call = torch._dynamo.lookup_backend("fxpool")(gm, inputs)

        def flat(*values: Any) -> list[Any]:
            leaves, found = torch.utils._pytree.tree_flatten(call(*values))
            assert found == torch.utils._pytree.tree_structure(form(leaves))
            return leaves

        return flat

    for hits in (0, 1):
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(single, backend=changed)(X, Y), single(X, Y))
        stats = fxpool.stats()
        assert (stats["compiles"], stats["hits"]) == ({"worker": 1, "in_process": 0}, hits)
        assert not stats["fallbacks"]


def test_a_graph_with_nothing_to_compute(beside_stock: BesideStock) -> None:
    def step(call: Callable[..., Any]) -> Any:
        return call(X, Y)

    compile_ = _called(lambda: _traced(nothing, X, Y), X, Y)
    assert beside_stock.stock(compile_, step).value == beside_stock.fxpool(compile_, step).value == [None, None]


def test_a_structure_that_stock_inductor_refuses(beside_stock: BesideStock) -> None:
    call = _called(lambda: _traced(nested, X, Y), X, Y)("fxpool")
    torch.testing.assert_close(call(X, Y), nested(X, Y))


def of_structures(a: Any, b: Any) -> Any:
    return a[0] * b["of"] + a[1], a[0].sum()


@pytest.mark.slow
def test_inputs_in_structures(beside_stock: BesideStock) -> None:
    given = ([X, Y], {"of": Y})
    beside_stock.agree(_called(lambda: fx.symbolic_trace(of_structures), *given), lambda call: call([X, Y], {"of": Y}))


# ------------------------------------------------------------------------------ exported


class Model(nn.Module):
    """Parameters, a buffer that changes, a constant that is none of both, and results with names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.linear = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.table = torch.arange(3.0)

    def forward(self, x: torch.Tensor, more: dict[str, torch.Tensor]) -> dict[str, Any]:
        self.calls.add_(1)
        return {"out": self.linear(x) + self.table, "none": None, "more": [more["y"] * self.calls]}


def _exported() -> Any:
    rows = torch.export.Dim("rows", min=2, max=64)
    shapes = {"x": {0: rows}, "more": {"y": None}}
    return torch.export.export(Model(), (X, {"y": Y}), dynamic_shapes=shapes)


@pytest.mark.slow
def test_an_exported_program(beside_stock: BesideStock) -> None:
    """Its module puts parameters, buffers and constants back where export had lifted them to."""

    def compile_(backend: str) -> Callable[..., Any]:
        module = _exported().module()
        call = torch.compile(module, backend=backend, dynamic=True)

        def step(rows: int) -> Any:
            found = call(torch.ones(rows, 6), {"y": Y})
            return found, module.calls.clone()

        return step

    beside_stock.agree(compile_, lambda step: [step(4), step(9)])


@pytest.mark.slow
def test_the_graph_of_an_exported_program(beside_stock: BesideStock) -> None:
    """Handed over as it is: structures in, structures out, no Dynamo behind it."""

    def step(call: Callable[..., Any]) -> Any:
        return call(X, {"y": Y})

    def compile_(backend: str) -> Callable[..., Any]:
        module = torch.export.export(Plain(), (X, {"y": Y})).module()
        made: Callable[..., Any] = torch._dynamo.lookup_backend(backend)(module, [X, {"y": Y}])
        return made

    beside_stock.agree(compile_, step)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.linear = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, more: dict[str, torch.Tensor]) -> dict[str, Any]:
        return {"out": self.linear(x), "more": [more["y"] * 2]}
