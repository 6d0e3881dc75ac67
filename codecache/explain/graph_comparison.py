"""Compares two encoded graphs node by node: changed, added, removed and renamed nodes.

    nodes of a ─┐
                ├─▶ aligned by what they do (Myers' shortest edit script) ─▶ gaps paired ─▶ references compared
    nodes of b ─┘

A reference counts as equal if it leads to the aligned node, so an added node does not make all later nodes
differ. Myers' algorithm breaks ties by the order of its two arguments; the lesser graph always comes first, so that
the comparison is symmetric (E. Myers, An O(ND) difference algorithm and its variations, Algorithmica 1, 1986).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from fxpool.codecache.graph import encoded_values
from fxpool.codecache.graph.encoded_values import called, shortened, text

__all__ = ["Difference", "aligned", "changes", "paired", "value_changes"]

#: Graphs that differ in more nodes are aligned by name: the search takes time in the square of this.
_MOST_EDITS = 400


@dataclass(frozen=True)
class Difference:
    """One item that differs. `before` and `after` are its values as text, None on the side without the item.

    `component` is a component of the key (`codecache.key.key`), `item` a node, input, option or function; empty if only
    the digests of the component are known to differ. `position` is the position of a node in its graph.
    """

    component: str
    item: str
    before: str | None
    after: str | None
    position: int | None = None

    @classmethod
    def of(cls, component: str, item: str, both: Iterable[Any], shown: Callable[[Any], str] = str) -> Difference:
        """Return the difference of an item's values, which `shown` turns into text; None for a missing value."""
        before, after = (None if value is None else shown(value) for value in both)
        return cls(component, item, before, after)

    def mirrored(self) -> Difference:
        return dataclasses.replace(self, before=self.after, after=self.before)

    def __str__(self) -> str:
        name = f"{self.component}: {self.item}" if self.item else self.component
        if self.before is None:
            return f"{name}: added: {self.after}"
        if self.after is None:
            return f"{name}: removed: {self.before}"
        return f"{name}: {self.before} -> {self.after}"


def changes(a: Any, b: Any, prefix: str = "") -> list[Difference]:
    """Return the differences between two graphs encoded by `graph_codec`. Items get the prefix `prefix`.

    Symmetric: exchanging the graphs exchanges `before` and `after`.
    """
    if a == b:
        return []
    if msgspec.msgpack.encode(b) < msgspec.msgpack.encode(a):
        return [change.mirrored() for change in changes(b, a, prefix)]
    found = [*_node_changes(a[1], b[1], prefix), *_named_changes(a, b, prefix)]
    return found or _renamed(a[1], b[1], prefix)


# ---------------------------------------------------------------- nodes


def _node_changes(a: Sequence[Any], b: Sequence[Any], prefix: str) -> Iterator[Difference]:
    pairs = aligned([_does(row) for row in a], [_does(row) for row in b])
    if pairs is None:
        pairs = _by_name(a, b)
    pairs = [*pairs, *_paired_in_gaps(a, b, pairs)]
    pairs.sort()
    there = dict(pairs)
    partner_of_b = {at_b: at_a for at_a, at_b in pairs}
    rows: list[tuple[tuple[int, int], Difference]] = []
    for at_a, at_b in pairs:
        if _does(a[at_a]) != _does(b[at_b]) or [there.get(n) for n in _references(a[at_a])] != _references(b[at_b]):
            item = f"{prefix}node {a[at_a][1]}"
            rows.append(((at_a, 0), Difference("graph", item, _shown(a, at_a), _shown(b, at_b), at_a)))
    for at, row in enumerate(a):
        if at not in there:
            rows.append(((at, 1), Difference("graph", f"{prefix}node {row[1]}", _shown(a, at), None, at)))
    for at, row in enumerate(b):
        if at not in partner_of_b:
            before = max((partner_of_b[n] for n in range(at) if n in partner_of_b), default=-1)
            rows.append(((before, 2 + at), Difference("graph", f"{prefix}node {row[1]}", None, _shown(b, at), at)))
    rows.sort(key=lambda pair: pair[0])
    yield from (change for _, change in rows)


def _does(row: Any) -> Hashable:
    """Return the operation of a node, without its name and its references to other nodes."""
    op, _, target, args, kwargs, meta = row
    return op, called(target), *(_without_references(part) for part in (args, kwargs, meta))


def _without_references(value: Any) -> str:
    return text(value, lambda _: "_")


def _references(row: Any) -> list[int]:
    found: list[int] = []

    def walk(value: Any) -> None:
        if isinstance(value, list):
            if len(value) == 2 and value[0] == "n" and type(value[1]) is int:
                found.append(value[1])
            else:
                for part in value:
                    walk(part)

    for part in row[3:]:
        walk(part)
    return found


def _shown(nodes: Sequence[Any], at: int) -> str:
    """Return a node as code: ``add(sin, 1.0, alpha=2)``."""

    def name(number: int) -> str:
        return str(nodes[number][1]) if 0 <= number < len(nodes) else f"%{number}"

    op, _, target, args, kwargs, meta = nodes[at]
    what = called(target)
    if op == "output":
        shown = f"return {', '.join(text(part, name) for part in args[1:])}"
    elif op in ("placeholder", "get_attr"):
        shown = f"{op.replace('placeholder', 'input')} {what}"
    else:
        parts = [text(part, name) for part in args[1:]]
        parts += [f"{keyword}={text(value, name)}" for keyword, value in kwargs[1:]]
        if op == "call_method" and parts:
            shown = f"{parts[0]}.{what}({', '.join(parts[1:])})"
        else:
            shown = f"{what}({', '.join(parts)})"
    if meta:
        shown += f" with {', '.join(f'{name_}={text(value, name)}' for name_, value in meta)}"
    return shortened(shown)


def aligned(a: Sequence[Hashable], b: Sequence[Hashable], most: int = _MOST_EDITS) -> list[tuple[int, int]] | None:
    """Return the positions of a longest common subsequence; None if more than `most` items are in one only."""
    start = 0
    while start < len(a) and start < len(b) and a[start] == b[start]:
        start += 1
    end = 0
    while end < len(a) - start and end < len(b) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    middle = _middle(a[start : len(a) - end], b[start : len(b) - end], most)
    if middle is None:
        return None
    pairs = [(at, at) for at in range(start)]
    pairs += [(start + x, start + y) for x, y in middle]
    pairs += [(len(a) - at, len(b) - at) for at in range(end, 0, -1)]
    return pairs


def _middle(a: Sequence[Hashable], b: Sequence[Hashable], most: int) -> list[tuple[int, int]] | None:
    furthest: dict[int, int] = {1: 0}  # diagonal -> position in `a`
    steps: list[dict[int, int]] = []
    for edits in range(min(len(a) + len(b), most) + 1):
        steps.append(dict(furthest))
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (
                diagonal != edits and furthest.get(diagonal - 1, -1) < furthest.get(diagonal + 1, -1)
            )
            x = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
            y = x - diagonal
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = x
            if x >= len(a) and y >= len(b):
                return _way_back(len(a), len(b), steps)
    return None


def _way_back(x: int, y: int, steps: Sequence[dict[int, int]]) -> list[tuple[int, int]]:
    """Follow the way from the end to the start; return its equal pairs in order."""
    pairs: list[tuple[int, int]] = []
    for edits in range(len(steps) - 1, -1, -1):
        before, diagonal = steps[edits], x - y
        down = diagonal == -edits or (diagonal != edits and before.get(diagonal - 1, -1) < before.get(diagonal + 1, -1))
        came_from = diagonal + 1 if down else diagonal - 1
        x_before = before.get(came_from, 0)
        y_before = x_before - came_from
        while x > x_before and y > y_before and x > 0 and y > 0:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        if edits:
            x, y = x_before, y_before
    return pairs[::-1]


def _by_name(a: Sequence[Any], b: Sequence[Any]) -> list[tuple[int, int]]:
    """Pair nodes of the same name, in order: the fallback for graphs that have little in common."""
    at_b = {row[1]: at for at, row in enumerate(b)}
    pairs: list[tuple[int, int]] = []
    last = -1
    for at, row in enumerate(a):
        other = at_b.get(row[1], -1)
        if other > last:
            pairs.append((at, other))
            last = other
    return pairs


def _paired_in_gaps(a: Sequence[Any], b: Sequence[Any], pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Pair nodes between aligned ones: equal calls with other arguments, else one for one if there are as many."""
    x = y = 0
    for end_x, end_y in [*pairs, (len(a), len(b))]:
        if x < end_x and y < end_y:
            ours, theirs = range(x, end_x), range(y, end_y)
            same = aligned([(a[n][0], called(a[n][2])) for n in ours], [(b[n][0], called(b[n][2])) for n in theirs])
            at_x = at_y = 0
            for next_x, next_y in [*(same or ()), (len(ours), len(theirs))]:
                if next_x - at_x == next_y - at_y:
                    yield from zip(ours[at_x:next_x], theirs[at_y:next_y], strict=True)
                if next_x < len(ours):
                    yield ours[next_x], theirs[next_y]
                at_x, at_y = next_x + 1, next_y + 1
        x, y = end_x + 1, end_y + 1


def _renamed(a: Sequence[Any], b: Sequence[Any], prefix: str) -> list[Difference]:
    """Return renamed nodes. Names count only if nothing else differs: few keys include them."""
    return [
        Difference("graph", f"{prefix}the name of node {at}", str(row[1]), str(other[1]), at)
        for at, (row, other) in enumerate(zip(a, b, strict=False))
        if row[1] != other[1]
    ]


# ---------------------------------------------------------------- what a graph has by name


def _named_changes(a: Any, b: Any, prefix: str) -> Iterator[Difference]:
    """Compare attributes (constants, nested graphs), parameters and buffers, and metadata of the graph."""
    for name, ours, theirs in _joined(a[2], b[2]):
        if _is_graph(ours) and _is_graph(theirs):
            yield from changes(ours, theirs, f"{prefix}{name}: ")
        elif ours != theirs:
            yield from _attribute(f"{prefix}constant {name}", ours, theirs)
    ours_, theirs_ = ([[name, [kind, value]] for name, kind, value in graph[3]] for graph in (a, b))
    for name, one, other in _joined(ours_, theirs_):
        if one != other:
            values = (side[1] if side else None for side in (one, other))
            yield from value_changes("graph", f"{prefix}parameter {name}", *values)
    for name, one, other in _joined(a[4], b[4]):
        if one != other:
            yield Difference.of("graph", f"{prefix}{name}", (one, other), _short_text)


def _attribute(item: str, a: Any, b: Any) -> Iterator[Difference]:
    shown = Difference.of("graph", item, (a, b), lambda value: "a graph" if _is_graph(value) else text(value))
    if shown.before != shown.after:
        yield shown
    elif a is not None and b is not None and [*a[:1], *a[2:]] != [*b[:1], *b[2:]]:
        yield Difference.of("graph", item, (a[2:], b[2:]), lambda value: shortened(repr(value)))


def _joined(a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
    ours, theirs = {str(row[0]): row[1] for row in a}, {str(row[0]): row[1] for row in b}
    for name, other in paired([*ours], [*theirs]):
        yield name or other or "", ours.get(name or ""), theirs.get(other or "")


def paired(a: Sequence[str], b: Sequence[str]) -> Iterator[tuple[str | None, str | None]]:
    """Pair names: equal names, then the others in their order, as renaming changes no key; None pairs with the rest."""
    rest = iter([name for name in b if name not in a])
    for name in a:
        yield name, name if name in b else next(rest, None)
    for name in rest:
        yield None, name


def _is_graph(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 5 and value[0] == "graph"


# Facts of a tensor that follow from others, or from earlier tensors: named only if nothing else differs.
_FOLLOWING = frozenset(
    ("number", "storage", "bytes", "creation", "base.number", "base.storage", "base.bytes", "base.creation")
)


def _short_text(value: Any) -> str:
    return shortened(text(value))


def value_changes(component: str, item: str, a: Any, b: Any) -> list[Difference]:
    """Compare two encoded values, tensors fact by fact; None stands for a missing value."""
    if not (encoded_values.is_tensor(a) and encoded_values.is_tensor(b)):
        return [Difference.of(component, item, (a, b), _short_text)] if a != b else []
    ours, theirs = encoded_values.tensor_fields(a), encoded_values.tensor_fields(b)
    if ("base.dtype" in ours) != ("base.dtype" in theirs):  # only one of the two is a view
        ours, theirs = ({name: v for name, v in one.items() if not name.startswith("base.")} for one in (ours, theirs))
    differing = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    own = [name for name in differing if name not in _FOLLOWING] or differing
    if not own:
        return []
    both = [", ".join(f"{name} {fields.get(name, 'none')}" for name in own) for fields in (ours, theirs)]
    return [Difference.of(component, item, both)]
