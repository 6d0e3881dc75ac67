"""Makes an interval of a graph a separate graph, and compares two such graphs.

Two pieces are equal if they are equal as plain data: operators, arguments, facts about inputs (sizes, strides, offsets,
types, shared memory, which inputs require gradients), constants by content, and metadata of nodes that the compile
reads. Keys are made of the same form (`codecache.graph.graph_codec`), so a piece that cannot be encoded equals no
other.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch.fx import Node

from fxpool.codecache.key import key
from fxpool.errors import CannotTravelError
from fxpool.lowering.regions import symbols
from fxpool.lowering.regions.cut_points import Interval, TracedGraph, UncuttableError
from fxpool.lowering.regions.symbols import OwnSymbols
from fxpool.lowering.request import overlapping_inputs
from fxpool.torch_compat.dynamo import tensors, tracing
from fxpool.torch_compat.dynamo.shape_env import ShapeEnv

__all__ = ["Identity", "Piece", "extract", "identity"]


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """A graph with its inputs, fake or real, cut from `interval`. `attributes` and `meta` are its module's."""

    interval: Interval
    graph: torch.fx.Graph
    attributes: dict[str, Any]
    meta: dict[str, Any]
    inputs: tuple[Any, ...]

    @functools.cached_property
    def gm(self) -> torch.fx.GraphModule:
        """Return the graph as a module, made on demand: most pieces equal another piece and need no generated code."""
        gm = torch.fx.GraphModule(self.attributes, self.graph)
        gm.meta = dict(self.meta)
        tracing.without_parameters(gm)
        return gm


def extract(graph: TracedGraph, interval: Interval) -> Piece:
    """Return an interval as a graph; `graph` is not changed."""
    made = torch.fx.Graph()
    root: dict[str, Any] = {}
    copies: dict[Node, Node] = {}
    for number, node in enumerate(interval.inputs):
        copies[node] = made.placeholder(f"input_{number}")
        copies[node].meta = _about_input(graph, node)
        # Through its source, an input gets the symbols of tracing. A value from another piece has no source in the
        # user's frame.
        tracing.set_placeholder_source(copies[node], tracing.placeholder_source(node))
    for number, node in enumerate(interval.graphs):
        root[f"graph_{number}"] = graph.attribute(node)
        copies[node] = made.get_attr(f"graph_{number}")
        copies[node].meta = dict(node.meta)
    for number, node in enumerate(interval.nodes):
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), copies.__getitem__)
        copies[node] = made.create_node(node.op, node.target, args, kwargs, f"node_{number}")
        copies[node].meta = dict(node.meta)
    made.output(tuple(copies[node] for node in interval.outputs))
    return Piece(interval, made, root, dict(graph.gm.meta), tuple(_input(graph, node) for node in interval.inputs))


def _about_input(graph: TracedGraph, node: Node) -> dict[str, Any]:
    if node.op == "placeholder":
        kept = ("example_value", "tensor_dict", "stack_trace")
        return {name: node.meta[name] for name in kept if name in node.meta}
    return {"example_value": graph.value(node)}


def _input(graph: TracedGraph, node: Node) -> Any:
    """Return the stand-in for a value when a piece is compiled: the backend's input, or a leaf with the same memory."""
    if node in graph.inputs:
        return graph.inputs[node]
    value = graph.value(node)
    if isinstance(value, torch.Tensor) and tensors.is_fake(value):
        return value.detach().requires_grad_(value.requires_grad)
    return value


class Identity(NamedTuple):
    """The identity of a piece: pieces of equal `digest` differ at most in their `symbols`, which correspond by
    position."""

    digest: str
    symbols: OwnSymbols


def identity(piece: Piece, constraints: Sequence[Any] = ()) -> Identity:
    """Return the identity of a piece; two pieces of a graph with equal digests can share one compile.

    Raises UncuttableError: a part of the piece cannot be encoded for the comparison.
    """
    encoder = symbols.Encoder()
    try:
        fakes = _fakes(piece)
        values = [encoder.value(value) for value in fakes]
        described = types.SimpleNamespace(**piece.attributes, graph=piece.graph, meta=piece.meta)
        description = encoder.encode(cast("torch.fx.GraphModule", described)).description
        layout = [list(pair) for pair in overlapping_inputs.layout(_real(piece.inputs))]
        whole = key.canonical(
            [description, values, layout, list(constraints), encoder.facts(_shape_env()), list(encoder.groups)]
        )
    except CannotTravelError as error:
        raise UncuttableError(error.reason, error.detail) from error
    except (TypeError, ValueError) as error:
        raise UncuttableError("not_comparable", str(error)) from error
    return Identity(hashlib.sha256(whole).hexdigest(), tuple(encoder.own))


def _shape_env() -> ShapeEnv | None:
    context = tracing.current_context()
    return context.fake_mode.shape_env if context is not None and context.fake_mode is not None else None


def _fakes(piece: Piece) -> list[Any]:
    """Return the inputs as metadata: real inputs have a fake twin in the graph, except for its constants."""
    placeholders = [node for node in piece.graph.nodes if node.op == "placeholder"]
    return [
        node.meta.get("example_value") if isinstance(value, torch.Tensor) and not tensors.is_fake(value) else value
        for node, value in zip(placeholders, piece.inputs, strict=True)
    ]


def _real(inputs: Sequence[Any]) -> list[Any]:
    return [value if isinstance(value, torch.Tensor) and not tensors.is_fake(value) else None for value in inputs]
