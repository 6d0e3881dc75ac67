"""A Dynamo graph, and the places where it may be cut.

A cut is refused where it could change the program's behaviour: inside a stretch under another state (autocast,
gradients off), where one side writes to memory that the other side uses, and where a value cannot be an input of a
graph. In doubt, the graph is not cut.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from fxpool.torch_compat.dynamo import shape_env, tensors
from fxpool.torch_compat.operators import node_effects

__all__ = ["Interval", "TracedGraph", "UncuttableError"]


class UncuttableError(Exception):
    """The graph, or an interval of it, stays whole. `reason` is counted, `detail` names the cause."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{reason}: {detail}" if detail else reason)


@dataclasses.dataclass(frozen=True, eq=False)
class Interval:
    """The nodes from position `first` up to `end`, with their inputs and outputs.

    `inputs` are in order of use with symbols first, `outputs` in order of the graph; `graphs` are the nodes that name
    subgraphs of higher-order operators.
    """

    first: int
    end: int
    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    graphs: tuple[Node, ...]


class TracedGraph:
    """`nodes` are the computing nodes, in order; `inputs` are the backend's inputs by placeholder.

    Raises UncuttableError: the graph contains something that rules out every cut.
    """

    def __init__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
        self.gm = gm
        self.placeholders: list[Node] = []
        self.attributes: list[Node] = []
        self.nodes: list[Node] = []
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                self.placeholders.append(node)
            elif node.op == "get_attr":
                self.attributes.append(node)
            elif node.op == "output":
                self.output = node
            elif node.op == "call_module":
                raise UncuttableError("call_module", str(node.target))
            else:
                self.nodes.append(node)
        self.inputs = dict(zip(self.placeholders, inputs, strict=True))
        self.position = {node: position for position, node in enumerate(self.nodes)}
        self.graph_nodes = frozenset(node for node in self.attributes if self._is_graph(node))
        self._symbols = self._symbols_by_name()
        self._closed = self._closed_positions()
        self._writes = self._writes_by_storage()

    @property
    def on_gpu(self) -> bool:
        """Return whether any input is on another device than the CPU."""
        return any(isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in self.inputs.values())

    def attribute(self, node: Node) -> Any:
        """Return the attribute that a ``get_attr`` node names."""
        return operator.attrgetter(str(node.target))(self.gm)

    def _is_graph(self, node: Node) -> bool:
        value = self.attribute(node)
        if isinstance(value, torch.fx.GraphModule):
            return True
        if isinstance(value, torch.Tensor):
            return False
        raise UncuttableError("attribute", type(value).__name__)

    def value(self, node: Node) -> Any:
        """Return a node's value as traced; for an attribute the tensor itself."""
        return self.attribute(node) if node.op == "get_attr" else node_effects.value_of(node)

    def _symbols_by_name(self) -> dict[str, Node]:
        """Return the placeholder of each symbol, by the symbol's name."""
        found: dict[str, Node] = {}
        for node in self.placeholders:
            value = self.value(node)
            if isinstance(value, torch.SymInt) and (name := shape_env.plain_symbol(value)) is not None:
                found[name] = node
        return found

    # ------------------------------------------------------------ state and memory

    def _closed_positions(self) -> list[bool]:
        """Return for each node, and for the end, whether the state in front of it is that of the graph's call."""
        ambient = torch.is_grad_enabled()
        open_stretches: set[Node] = set()
        gradients = ambient
        closed = []
        for node in self.nodes:
            closed.append(not open_stretches and gradients == ambient)
            if not (name := node_effects.state_set_by(node)):
                continue
            setting = node_effects.gradients_set_by(node)
            if node_effects.enters(node):
                open_stretches.add(node)
            elif node_effects.leaves(node) and node.args and node.args[0] in open_stretches:
                open_stretches.discard(node.args[0])
            elif setting is not None:
                gradients = setting
            else:
                raise UncuttableError("state", name)
        return [*closed, not open_stretches and gradients == ambient]

    def _writes_by_storage(self) -> dict[int, list[int]]:
        """Return for each storage that is written to the positions of the nodes that write."""
        writes: dict[int, list[int]] = {}
        for position, node in enumerate(self.nodes):
            for written in node_effects.written_by(node):
                value = self.value(written)
                storages = list(node_effects.storages_of(value))
                if not storages and value is None:
                    raise UncuttableError("write", f"{node.name} writes to {written.name}, of unknown origin")
                for storage in storages:
                    writes.setdefault(storage, []).append(position)
        return writes

    @functools.cached_property
    def _reach(self) -> dict[int, tuple[int, int, list[Node]]]:
        """Return for each written storage the first and last position that makes or uses it, and those nodes."""
        reach: dict[int, tuple[int, int, list[Node]]] = {}
        for node in (*self.placeholders, *self.attributes, *self.nodes):
            for storage in node_effects.storages_of(self.value(node)):
                if storage not in self._writes:
                    continue
                at = [self.position[user] for user in node.users if user in self.position]
                if node in self.position:
                    at.append(self.position[node])
                first, last, nodes = reach.get(storage, (len(self.nodes), -1, []))
                reach[storage] = min([first, *at]), max([last, *at]), [*nodes, node]
        return reach

    # ------------------------------------------------------------ intervals

    def interval(self, first: int, end: int) -> Interval:
        """Return the nodes from `first` up to `end` with their inputs and outputs."""
        nodes = self.nodes[first:end]
        inside = set(nodes)
        used: dict[Node, None] = {}
        graphs: dict[Node, None] = {}
        for node in nodes:
            for argument in node.all_input_nodes:
                if argument not in inside:
                    (graphs if argument in self.graph_nodes else used)[argument] = None
        symbols: dict[Node, None] = {}
        if self._symbols:
            for node in (*nodes, *used):
                for name in shape_env.symbols_in(self.value(node)):
                    if (symbol := self._symbols.get(name)) is not None:
                        symbols[symbol] = None
        for symbol in symbols:
            used.pop(symbol, None)
        outputs = tuple(node for node in nodes if any(user not in inside for user in node.users))
        return Interval(first, end, tuple(nodes), (*symbols, *used), outputs, tuple(graphs))

    def grown(self, first: int, end: int) -> tuple[int, int]:
        """Widen an interval by nodes that belong to it: the borders of a stretch it fills, parts of its last tuple."""
        while (
            first > 0
            and end < len(self.nodes)
            and node_effects.enters(self.nodes[first - 1])
            and node_effects.leaves(self.nodes[end])
            and self.nodes[end].args[:1] == (self.nodes[first - 1],)
        ):
            first, end = first - 1, end + 1
        while end < len(self.nodes) and self._takes_part(self.nodes[end], first, end):
            end += 1
        return first, end

    def _takes_part(self, node: Node, first: int, end: int) -> bool:
        if node.target is not operator.getitem or not isinstance(node.args[0], Node):
            return False
        whole = node.args[0]
        return first <= self.position.get(whole, -1) < end and isinstance(self.value(whole), (tuple, list))

    def check(self, interval: Interval) -> None:
        """Raise UncuttableError if the interval cannot be a separate graph."""
        if not (self._closed[interval.first] and self._closed[interval.end]):
            raise UncuttableError("open_context", "autocast or disabled gradients extend across the cut")
        for node in (*interval.inputs, *interval.outputs):
            if (reason := self.why_not_across(node)) is not None:
                raise UncuttableError(reason, node.name)
        self._check_symbols(interval)
        for storage, positions in self._writes.items():
            if not any(interval.first <= position < interval.end for position in positions):
                continue
            first, last, nodes = self._reach[storage]
            if first < interval.first or last >= interval.end:
                raise UncuttableError("write_across", nodes[0].name)
            self._check_written(interval, nodes)

    def _check_written(self, interval: Interval, nodes: Sequence[Node]) -> None:
        """Check that memory which only this interval uses and writes belongs to at most one input, not to a leaf."""
        outer = [node for node in nodes if node not in self.position]
        if len(outer) > 1:
            raise UncuttableError("write_shared", ", ".join(node.name for node in outer))
        for node in outer:
            value = self.value(node)
            if node not in interval.inputs or (value.requires_grad and value.is_leaf):
                raise UncuttableError("write_to_leaf", node.name)

    def _check_symbols(self, interval: Interval) -> None:
        """Check that every symbol of an interval appears in its inputs."""
        given = {name for node in interval.inputs for name in shape_env.plain_symbols_in(self.value(node))}
        needed = {
            name for node in (*interval.inputs, *interval.nodes) for name in shape_env.symbols_in(self.value(node))
        }
        if not needed <= given:
            raise UncuttableError("symbols", ", ".join(sorted(needed - given)))

    def why_not_across(self, node: Node) -> str | None:
        """Return why a value cannot be passed from one graph to another; None if it can."""
        value = self.value(node)
        if isinstance(value, torch.Tensor):
            if node.op == "get_attr":
                return None if type(value) in (torch.Tensor, torch.nn.Parameter) else "subclass"
            if not tensors.is_plain_fake(value):
                return "subclass"
            if value.layout is not torch.strided or value.is_conj() or value.is_neg():
                return "tensor"
            return "unbacked" if shape_env.has_unbacked(value) else None
        if isinstance(value, torch.SymInt):
            return "unbacked" if shape_env.has_unbacked(value) else None
        if node.op == "placeholder" and (value is None or isinstance(value, (int, float, bool, torch.SymFloat))):
            return None if not isinstance(value, torch.SymFloat) else "symfloat"
        return "value" if value is not None else "unknown_value"

    def live(self) -> list[int | None]:
        """Return for each position the number of values that a cut there would pass on; None if no cut is allowed.

        Parameters are not counted: each side has the parameters that it uses.
        """
        count = len(self.nodes)
        crossing = [0] * (count + 2)
        refused = [not closed for closed in self._closed]
        for node in self.nodes:
            users = [self.position.get(user, count) for user in node.users]
            if not users:
                continue
            begin, last = self.position[node] + 1, max(users)
            crossing[begin] += 1
            crossing[last + 1] -= 1
            if self.why_not_across(node) is not None:
                for position in range(begin, min(last, count - 1) + 1):
                    refused[position] = True
        for first, last, _ in self._reach.values():
            for position in range(first + 1, last + 1):
                refused[position] = True
        sums: list[int | None] = []
        running = 0
        for position in range(count + 1):
            running += crossing[position]
            sums.append(None if refused[position] or position == 0 else running)
        return sums

    def only_looks(self, node: Node) -> bool:
        """Return whether a node computes no tensor data: a view of an existing tensor, a size, a part of a tuple."""
        if node_effects.written_by(node) or node_effects.state_set_by(node):
            return False
        known = {storage for argument in node.all_input_nodes for storage in _storages(self.value(argument))}
        value = self.value(node)
        parts = value if isinstance(value, (tuple, list)) else (value,)
        if not all(isinstance(part, (torch.Tensor, torch.SymInt, int, bool, torch.Size)) for part in parts):
            return False
        return known.issuperset(_storages(value))


_storages = node_effects.storages_of
