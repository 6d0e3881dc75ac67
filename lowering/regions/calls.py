"""The tree of module calls behind a Dynamo graph, read from the metadata of its nodes.

A call is a range of nodes with a name and a class. A subgraph of a higher-order operator (a checkpoint, a region that
the user marked) counts as a call, too, and its nodes count as the weight.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch

from fxpool.torch_compat.operators import node_effects, operators

__all__ = ["Call", "tree", "weights"]

#: Higher-order operators with at least this many nodes inside count as calls.
_LEAST_BODY = 4


@dataclasses.dataclass(eq=False)
class Call:
    """A module call: the positions of its `first` and `last` node, and the calls in it, in order."""

    name: str
    first: int
    last: int
    children: dict[str, Call] = dataclasses.field(default_factory=dict)

    def in_order(self) -> list[Call]:
        return sorted(self.children.values(), key=lambda call: call.first)

    def walk(self) -> Iterator[Call]:
        yield self
        for child in self.children.values():
            yield from child.walk()


def weights(nodes: Sequence[torch.fx.Node]) -> list[int]:
    """Return the weight of each node in lowering: one, plus the nodes of its subgraphs."""
    return [1 + _inside(node) for node in nodes]


def _inside(node: torch.fx.Node) -> int:
    if node.op != "call_function" or not operators.is_higher_order(node.target):
        return 0
    return sum(sum(weights(list(body.graph.nodes))) for body in node_effects.bodies(node))


def tree(nodes: Sequence[torch.fx.Node]) -> Call:
    """Return the root of the calls that `nodes`, in the graph's order, come from."""
    root = Call("", 0, len(nodes) - 1)
    for position, (node, weight) in enumerate(zip(nodes, weights(nodes), strict=True)):
        stack = {key: name for key, (name, *_) in (node.meta.get("nn_module_stack") or {}).items()}
        if weight > _LEAST_BODY:
            stack[f"operator {node.name}"] = node.name
        at = root
        for key, name in stack.items():
            if key not in at.children:
                at.children[key] = Call(name, position, position)
            at = at.children[key]
            at.last = position
    return root
