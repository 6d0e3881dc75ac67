"""Compares two keys and names each node, input, option and function that differs.

    differences(a, b) ──▶ Difference(component, item, before, after), ...

A pure function of the key details in entries (`key_detail`). Equal keys give no difference, unequal keys at least one;
`differences(b, a)` gives the same with before and after exchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fxpool.codecache.explain.graph_comparison import Change, changes, paired, value_changes
from fxpool.codecache.graph import encoded_values
from fxpool.codecache.guards import guards
from fxpool.codecache.key import key_detail
from fxpool.codecache.key.components import ORDER
from fxpool.codecache.store.entry import Component

__all__ = ["Described", "Difference", "differences", "equal_components", "lines"]

_SHOWN = 20  # differences listed per component
_DIGEST, _DIGITS = re.compile(r"\b[0-9a-f]{40,}\b"), 12


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

    def mirrored(self) -> Difference:
        return Difference(self.component, self.item, self.after, self.before, self.position)

    def __str__(self) -> str:
        what = f"{self.component}: {self.item}" if self.item else self.component
        if self.before is None:
            return f"{what}: added: {self.after}"
        if self.after is None:
            return f"{what}: removed: {self.before}"
        return f"{what}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class Described:
    """The components of a key by name, as digests, and their details (`key_detail.unpacked`)."""

    digests: Mapping[str, str]
    detail: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, components: Sequence[Component], detail: bytes) -> Described:
        return cls({one.name: one.digest for one in components}, key_detail.unpacked(detail))


def equal_components(a: Described, b: Described) -> list[str]:
    """Return the names of the components that are equal in both."""
    return [name for name, digest in a.digests.items() if b.digests.get(name) == digest]


def differences(a: Described, b: Described) -> tuple[Difference, ...]:
    """Return all items in which two keys differ, by component, in the order of the key's components."""
    if sorted(b.digests.items()) < sorted(a.digests.items()):
        return tuple(one.mirrored() for one in differences(b, a))
    found: list[Difference] = []
    for name in sorted({*a.digests, *b.digests}, key=_order):
        before, after = a.digests.get(name), b.digests.get(name)
        if before == after:
            continue
        items = _items(name, a.detail, b.detail)
        found += [Difference(name, one.item, one.before, one.after, one.position) for one in items]
        if not items:
            whole = Change.of(
                "", (None if digest is None else f"digest {digest[:_DIGITS]}" for digest in (before, after))
            )
            found.append(Difference(name, "", whole.before, whole.after))
    return tuple(found)


def _order(name: str) -> tuple[int, str]:
    return (ORDER.index(name) if name in ORDER else len(ORDER)), name


def _items(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Change]:
    if not (a and b):
        return []
    try:
        compare = _COMPARE.get(name)
        return compare(a, b) if compare is not None else _mapping_changes(a[name], b[name])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, guards.UnknownGuardError, RecursionError):
        return []  # written by another version of fxpool


# ---------------------------------------------------------------- by component


def _graph(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Change]:
    if a["level"] != b["level"]:
        return [Change("level", str(a["level"]), str(b["level"]))]
    return changes(a["graph"], b["graph"])


def _inputs(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Change]:
    (ours, more), (theirs, other_more) = _values(a), _values(b)
    found: list[Change] = []
    for name, other in paired([*ours], [*theirs]):
        found += value_changes(f"input {name or other}", ours.get(name or ""), theirs.get(other or ""))
    found = _essential(found)
    if more != other_more:
        found.append(Change.of("arguments of the compile", map(_shown, (more, other_more))))
    if a["layout"] != b["layout"]:
        found.append(Change.of("overlapping inputs", (_overlaps(one) for one in (a, b))))
    if a["constraints"] != b["constraints"]:
        found.append(Change.of("dynamic-size marks", (_shown(one["constraints"]) for one in (a, b))))
    return found


def _values(detail: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return a graph's inputs by name, and the other arguments of its compile that are in the key."""
    values, more = detail["inputs"], None
    if detail["level"] != "aot":  # `lowering.request.capture` adds other arguments
        values, *more = values
    names = [str(row[1]) for row in detail["graph"][1] if row[0] == "placeholder"]
    if len(names) != len(values) or len(set(names)) != len(names):
        names = [str(number) for number in range(len(values))]
    return dict(zip(names, values, strict=True)), more


def _essential(found: list[Change]) -> list[Change]:
    """Leave out inputs that only differ in numbering, if other inputs differ in substance."""
    following = ("number ", "storage ")
    own = [one for one in found if not (one.before or "").startswith(following)]
    return own or found


def _overlaps(detail: Mapping[str, Any]) -> str:
    names = [str(row[1]) for row in detail["graph"][1] if row[0] == "placeholder"]
    # Lifted parameters come first in positions.
    names = [str(row[0]) for row in detail["graph"][3]] + names
    pairs = [
        f"{_named(names, first)} and {_named(names, second)}, {distance} bytes apart"
        for first, second, distance, *_ in detail["layout"]
    ]
    return "; ".join(pairs) or "none"


def _named(names: Sequence[str], at: int) -> str:
    return names[at] if at < len(names) else str(at)


def _shapes(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Change]:
    return _mapping_changes(*({str(row[0]): _symbol(row) for row in one["shapes"]} for one in (a, b)))


def _symbol(row: Sequence[Any]) -> str:
    name, lower, upper, size_like, override, replacement = row
    shown = f"{guards.render(lower)} <= {name} <= {guards.render(upper)}"
    shown += ", size-like" if size_like else ""
    shown += f", treated as {override!r}" if override is not None else ""
    return shown + (f", = {guards.render(replacement)}" if replacement is not None else "")


def _code(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Change]:
    """Return the functions, values and variables that differ, or else the names in the graph whose digests differ."""
    found: dict[str, Change] = {}
    coarse: list[Change] = []
    for change in _mapping_changes(a["code"], b["code"]):
        owner = max((name for name in a["covered"] if change.item.startswith(name)), key=len, default="")
        inner = _mapping_changes(a["covered"].get(owner, {}), b["covered"].get(owner, {}))
        # An item on one side only follows from a change of the code that refers to it.
        inner = [one for one in inner if None not in (one.before, one.after)]
        found |= {one.item: one for one in inner}
        if not inner or _file_of(change.item):
            coarse.append(change)
    files = [name.partition(" (")[2].partition(")")[0] for name in found]
    return [*found.values(), *(change for change in coarse if _file_of(change.item) not in files)]


def _file_of(item: str) -> str:
    """Return the file named by an item of the code component; empty for other items."""
    return item.rpartition("file ")[2] if "file " in item else ""


def _ambient(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Change]:
    found = _mapping_changes(a["ambient"], b["ambient"])
    if any(one.item == _PRECISION for one in found):  # torch derives these from it
        found = [one for one in found if not (one.item.startswith("fp32_precision_") and one.item.endswith("_matmul"))]
    return found


_PRECISION = "float32_matmul_precision"


def _mapping_changes(a: Mapping[str, str], b: Mapping[str, str]) -> list[Change]:
    return [
        Change.of(name, (None if value is None else _cut(str(value)) for value in (a.get(name), b.get(name))))
        for name in sorted({*a, *b})
        if a.get(name) != b.get(name)
    ]


def _cut(text: str) -> str:
    """Cut digests to the digits that identify them."""
    return _DIGEST.sub(lambda digest: digest[0][:_DIGITS], text)


def _shown(value: Any) -> str:
    return encoded_values.shortened(encoded_values.text(value) if isinstance(value, list) else repr(value))


# The components whose details are not mappings to compare item by item.
_COMPARE: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], list[Change]]] = {
    "graph": _graph,
    "inputs": _inputs,
    "shapes": _shapes,
    "ambient": _ambient,
    "code": _code,
}


# ---------------------------------------------------------------- for people


def lines(found: Sequence[Difference]) -> list[str]:
    """Return one line per difference; after the first `_SHOWN` of a component, one line with a count."""
    shown: list[str] = []
    counts: dict[str, int] = {}
    for one in found:
        counts[one.component] = counts.get(one.component, 0) + 1
        if counts[one.component] <= _SHOWN:
            shown.append(str(one))
        elif counts[one.component] == _SHOWN + 1:
            shown.append("")  # filled in below, when the count is known
    more = [f"{name}: {count - _SHOWN} more" for name, count in counts.items() if count > _SHOWN]
    rest = iter(more)
    return [line or next(rest) for line in shown]
