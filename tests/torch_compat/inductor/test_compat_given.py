"""`given` has results name the constants that the caller of a compile has, instead of carrying them."""

from __future__ import annotations

from typing import Any

import torch

from fxpool.torch_compat.inductor.output_code import Constants, leave_out_constants


class Graph:
    """Inductor's output, as far as its constants are concerned: whatever else a release reads of it is empty."""

    def __init__(self, constants: Any) -> None:
        self.constants = constants

    def __getattr__(self, name: str) -> Any:
        return {}


def graph_with(**constants: torch.Tensor) -> Any:
    return Graph(constants)


def test_a_constant_of_the_caller_s_is_named_by_number() -> None:
    weight, other = torch.ones(2), torch.ones(2)
    graph = graph_with(a=weight, b=other)
    leave_out_constants(graph, [torch.zeros(1), weight])
    assert graph.constants == {"b": other} and graph._fxpool_given == {"a": 1}
    there = [torch.zeros(1), torch.full((2,), 3.0)]
    unwrapped = Constants(there).unwrap(graph)
    assert unwrapped["a"] is there[1] and unwrapped["b"] is other


def test_equal_content_is_not_identity() -> None:
    graph = graph_with(a=torch.ones(2))
    leave_out_constants(graph, [torch.ones(2)])
    assert list(graph.constants) == ["a"] and graph._fxpool_given == {}


def test_a_graph_without_constants_has_none() -> None:
    graph: Any = Graph(None)
    leave_out_constants(graph, [])
    assert graph.constants == {} and Constants([]).unwrap(graph) == {}


def test_torch_unwraps_what_the_graph_has() -> None:
    """Its own class gives the graph's constants, which `Constants` adds to."""
    from torch._inductor.output_code import CompiledFxGraph, CompiledFxGraphConstants

    graph = graph_with(a=torch.ones(1))
    assert CompiledFxGraphConstants().unwrap(graph) == graph.constants
    assert "constants" in CompiledFxGraph.__annotations__
