"""The tree of module calls behind a graph, and the cuts that are worth making.

The tree is read from the metadata of nodes: a call is a range of nodes with a name and a class. A subgraph of a
higher-order operator (a checkpoint, a region that the user marked) counts as a call, too, and its nodes count as the
weight.

Cuts are decided on numbers: weights of nodes, digests of intervals, live values. Weights count nodes, as the time of
lowering grows with them. Equal digests mean that one compile serves both.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from fxpool.torch_compat.operators import node_effects, operators

__all__ = ["LEAST", "Call", "repeated", "spread", "tree", "weights_of"]

#: The minimum number of nodes of a piece: a smaller piece cannot win back its cost at run time and in the pool.
LEAST = 12
# A call is cut further if its repetitions leave less than this part of it to be compiled.
_WORTH_GOING_IN = 0.5

#: An interval without repetition that is heavier than this is spread over cores.
WORTH_SPREADING = 400
# The part of the whole graph's compile time up to which pieces are worth their cost at run time.
_WORTH = 0.75
#: The fixed cost of a graph, in nodes. On a CPU it is mostly the calls of compiler and linker: 0.8 to 1.0 s, at 9 ms a
#: node (GPT-2's inference on two cores). On a GPU it is the start of a worker, and loading.
FIXED_ON_CPU, FIXED_ON_GPU = 100, 30
#: The same if pieces are requested: the user may know of more cores, or of deeper models.
FIXED_AT_LEAST = 15

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


def weights_of(nodes: Sequence[torch.fx.Node]) -> list[int]:
    """Return the weight of each node in lowering: one, plus the nodes of its subgraphs."""
    return [1 + _inside(node) for node in nodes]


def _inside(node: torch.fx.Node) -> int:
    if node.op != "call_function" or not operators.is_higher_order(node.target):
        return 0
    return sum(sum(weights_of(list(body.graph.nodes))) for body in node_effects.bodies(node))


def tree(nodes: Sequence[torch.fx.Node]) -> Call:
    """Return the root of the calls that `nodes`, in the graph's order, come from."""
    root = Call("", 0, len(nodes) - 1)
    for position, (node, weight) in enumerate(zip(nodes, weights_of(nodes), strict=True)):
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


# ---------------------------------------------------------------- cuts


def is_worth_it(whole: int, distinct: Sequence[int], pieces: int, cores: int, fixed: int) -> bool:
    """Return whether compiling pieces takes clearly less time than compiling the graph of weight `whole`.

    `distinct` are the weights of the pieces that have to be compiled, `pieces` is the number of all pieces, `fixed`
    the cost of every graph besides its weight.
    """
    if not distinct or pieces < 2:
        return False
    costs = [weight + fixed for weight in distinct]
    return max(max(costs), sum(costs) / cores) <= _WORTH * (whole + fixed)


Digest = Callable[[Call], "str | None"]


def repeated(root: Call, weights: Sequence[int], digest: Digest, least: int = LEAST) -> list[Call]:
    """Return the calls to cut out, in order and without overlap: each equals another call in the result.

    `digest` returns a call's digest as a graph, or None if the call cannot be cut out. It is called only for calls of
    at least `least` nodes.
    """
    chosen, _ = _Planner(weights, digest, least).plan(root)
    count = Counter(digest(call) for call in chosen)
    return sorted((call for call in chosen if count[digest(call)] > 1), key=lambda call: call.first)


class _Planner:
    def __init__(self, weights: Sequence[int], digest: Digest, least: int) -> None:
        self._sums = [0]
        for weight in weights:
            self._sums.append(self._sums[-1] + weight)
        self._digest = digest
        self._least = least

    def weight(self, call: Call) -> int:
        return self._sums[call.last + 1] - self._sums[call.first]

    def plan(self, root: Call) -> tuple[list[Call], float]:
        """Return the calls to cut out below `root`, and the weight that then has to be compiled for it."""
        children = root.in_order()
        digests = [self._digest_of(child, children) for child in children]
        groups: dict[str, list[Call]] = {}
        for child, name in zip(children, digests, strict=True):
            if name is not None:
                groups.setdefault(name, []).append(child)
        chosen: list[Call] = []
        left: float = self.weight(root)
        for child, name in zip(children, digests, strict=True):
            if name is not None and len(groups[name]) > 1:
                continue
            inside, rest = self.plan(child)
            if inside:
                chosen += inside
                left -= self.weight(child) - rest
        for equal in groups.values():
            if len(equal) < 2:
                continue
            left -= sum(map(self.weight, equal))
            inside, rest = self.plan(equal[0])
            if inside and rest < _WORTH_GOING_IN * self.weight(equal[0]):
                chosen += [call for member in equal for call in self.plan(member)[0]]
                left += rest
            else:
                chosen += equal
                left += self.weight(equal[0])
        return chosen, left

    def _digest_of(self, call: Call, siblings: Sequence[Call]) -> str | None:
        if self.weight(call) < self._least:
            return None
        if any(other is not call and other.first <= call.last and call.first <= other.last for other in siblings):
            return None  # overlapping calls cannot both be cut out
        return self._digest(call)


def spread(weights: Sequence[int], live: Sequence[int | None], pieces: int, least: int = LEAST) -> list[int]:
    """Return positions that cut a row of nodes into at most `pieces` parts where the fewest values are live.

    A cut at position p is in front of node p. `live[p]` is the number of values that live across it, None if a cut is
    not allowed there; it has one element more than `weights`. Each part weighs at least half and at most one and a
    half of an equal share, and at least `least`; fewer parts are made if there are no such cuts.
    """
    total = sum(weights)
    for parts in range(min(pieces, total // max(1, least)), 1, -1):
        cuts = _thinnest(weights, live, parts, max(least, total / parts / 2), 1.5 * total / parts)
        if cuts is not None:
            return cuts
    return []


def _thinnest(
    weights: Sequence[int], live: Sequence[int | None], parts: int, least: float, most: float
) -> list[int] | None:
    """Return positions of `parts - 1` cuts with the smallest sum of live values; None if the bounds allow no cuts."""
    sums = [0]
    for weight in weights:
        sums.append(sums[-1] + weight)
    # best[p]: (sum of live values, position of the cut before) with the last cut so far at p.
    best: dict[int, tuple[int, int]] = {0: (0, -1)}
    rows = [best]
    allowed = [(position, count) for position, count in enumerate(live) if count is not None and position]
    for _ in range(parts - 1):
        row: dict[int, tuple[int, int]] = {}
        for position, count in allowed:
            before = [
                (cost + count, earlier)
                for earlier, (cost, _) in best.items()
                if least <= sums[position] - sums[earlier] <= most
            ]
            if before:
                row[position] = min(before)
        rows.append(row)
        best = row
    ends = [(cost, p) for p, (cost, _) in best.items() if least <= sums[-1] - sums[p] <= most]
    if not ends:
        return None
    cuts: list[int] = []
    position = min(ends)[1]
    for row in reversed(rows[1:]):
        cuts.append(position)
        position = row[position][1]
    return cuts[::-1]
