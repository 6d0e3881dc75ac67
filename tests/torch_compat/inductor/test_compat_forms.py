"""`graph_forms` brings graphs that take or return nested structures into Dynamo's flat form, and callables back."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch

from fxpool.torch_compat.inductor.graph_forms import as_from_dynamo

Pair = namedtuple("Pair", "first second")
X, Y = torch.ones(2), torch.full((2,), 3.0)


def flat(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x + y, y


def one(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x + y


def nested(x: torch.Tensor, y: torch.Tensor) -> Any:
    return {"sum": x + y, "rest": [y, (x, None)]}


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and all(map(equal, left, right))
    return bool(left == right)


def test_a_graph_in_dynamo_s_form_is_left_as_it_is() -> None:
    gm = torch.fx.symbolic_trace(flat)
    same, inputs, restore = as_from_dynamo(gm, [X, Y])
    assert same is gm and inputs == [X, Y] and restore(flat) is flat
    other, _, restore = as_from_dynamo(flat, [X])
    assert other is flat and restore(flat) is flat


@pytest.mark.parametrize("function", [one, nested], ids=lambda one: one.__name__)
def test_what_a_graph_returns_is_flat_and_comes_back_nested(function: Any) -> None:
    gm = torch.fx.symbolic_trace(function)
    text = str(gm.graph)
    changed, inputs, restore = as_from_dynamo(gm, [X, Y])
    assert changed is not gm and str(gm.graph) == text
    result = changed(*inputs)
    assert type(result) is tuple and not any(isinstance(value, (tuple, list, dict)) for value in result)
    assert equal(restore(changed)(X, Y), function(X, Y))


def test_a_named_tuple_comes_back_as_one() -> None:
    graph = torch.fx.Graph()
    x, y = map(graph.placeholder, "xy")
    graph.output({"pair": Pair(graph.call_function(torch.add, (x, y)), y)})
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    changed, inputs, restore = as_from_dynamo(gm, [X, Y])
    assert equal(changed(*inputs), (X + Y, Y))
    assert equal(restore(changed)(X, Y), {"pair": Pair(X + Y, Y)})


def test_a_graph_of_several_results_of_one_operator_is_flat() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.ops.aten.max.dim, (x, 0)))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    assert as_from_dynamo(gm, [X])[0] is gm


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_exported_graph_takes_and_returns_structures_by_its_code() -> None:
    class Model(torch.nn.Module):
        def forward(self, pair: Any, scale: torch.Tensor) -> Any:
            return {"out": pair[0] * scale, "in": pair[1]}

    program = torch.export.export(Model(), ((X, Y), Y))
    gm = program.module()
    changed, inputs, restore = as_from_dynamo(gm, [(X, Y), Y])
    assert [torch.equal(a, b) for a, b in zip(inputs, (X, Y, Y), strict=True)] == [True] * 3
    assert changed is not gm
    assert equal(restore(changed)((X, Y), Y), Model()((X, Y), Y))
