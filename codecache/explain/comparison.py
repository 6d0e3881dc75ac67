"""Compares two keys and names each node, input, option and function that differs.

    differences(a, b) ──▶ Difference(component, item, before, after), ...

A pure function of the key details in entries (`key_detail`). Equal keys give no difference, unequal keys at least one;
`differences(b, a)` gives the same with before and after exchanged.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fxpool.codecache.explain.graph_comparison import Difference, changes, paired, value_changes
from fxpool.codecache.graph import encoded_values
from fxpool.codecache.guards import guards
from fxpool.codecache.key import key_detail
from fxpool.codecache.key.components import ORDER
from fxpool.codecache.store.entry import Component

__all__ = ["Described", "Difference", "differences", "equal_components", "lines"]

_SHOWN = 20  # differences listed per component
_DIGEST, _DIGITS = re.compile(r"\b[0-9a-f]{40,}\b"), 12


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
        found += items or [Difference.of(name, "", (before, after), lambda digest: f"digest {digest[:_DIGITS]}")]
    return tuple(found)


def _order(name: str) -> tuple[int, str]:
    return (ORDER.index(name) if name in ORDER else len(ORDER)), name


def _items(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    if not (a and b):
        return []
    try:
        compare = _COMPARE.get(name)
        return compare(a, b) if compare is not None else _mapping_changes(name, a[name], b[name])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, guards.UnknownGuardError, RecursionError):
        return []  # written by another version of fxpool


# ---------------------------------------------------------------- by component


def _graph(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    if a["level"] != b["level"]:
        return [Difference.of("graph", "level", (a["level"], b["level"]))]
    return changes(a["graph"], b["graph"])


def _inputs(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    (ours, more), (theirs, other_more) = _values(a), _values(b)
    found: list[Difference] = []
    for name, other in paired([*ours], [*theirs]):
        found += value_changes("inputs", f"input {name or other}", ours.get(name or ""), theirs.get(other or ""))
    found = _essential(found)
    if more != other_more:
        found.append(Difference.of("inputs", "arguments of the compile", map(_shown, (more, other_more))))
    if a["layout"] != b["layout"]:
        found.append(Difference.of("inputs", "overlapping inputs", (a, b), _overlaps))
    if a["constraints"] != b["constraints"]:
        found.append(Difference.of("inputs", "dynamic-size marks", (a["constraints"], b["constraints"]), _shown))
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


def _essential(differences: list[Difference]) -> list[Difference]:
    """Leave out inputs that only differ in numbering, if other inputs differ in substance."""
    following = ("number ", "storage ")
    own = [one for one in differences if not (one.before or "").startswith(following)]
    return own or differences


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


def _shapes(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    return _mapping_changes("shapes", *({str(row[0]): _symbol(row) for row in one["shapes"]} for one in (a, b)))


def _symbol(row: Sequence[Any]) -> str:
    name, lower, upper, size_like, override, replacement = row
    shown = f"{guards.render(lower)} <= {name} <= {guards.render(upper)}"
    shown += ", size-like" if size_like else ""
    shown += f", treated as {override!r}" if override is not None else ""
    return shown + (f", = {guards.render(replacement)}" if replacement is not None else "")


def _code(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    """Return the functions, values and variables that differ, or else the names in the graph whose digests differ."""
    found: dict[str, Difference] = {}
    coarse: list[Difference] = []
    for change in _mapping_changes("code", a["code"], b["code"]):
        owner = max((name for name in a["covered"] if change.item.startswith(name)), key=len, default="")
        inner = _mapping_changes("code", a["covered"].get(owner, {}), b["covered"].get(owner, {}))
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


def _ambient(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    found = _mapping_changes("ambient", a["ambient"], b["ambient"])
    if any(one.item == _PRECISION for one in found):  # torch derives these from it
        found = [one for one in found if not (one.item.startswith("fp32_precision_") and one.item.endswith("_matmul"))]
    return found


_PRECISION = "float32_matmul_precision"


def _mapping_changes(component: str, a: Mapping[str, str], b: Mapping[str, str]) -> list[Difference]:
    return [
        Difference.of(component, name, (a.get(name), b.get(name)), lambda value: _cut(str(value)))
        for name in sorted({*a, *b})
        if a.get(name) != b.get(name)
    ]


def _cut(text: str) -> str:
    """Cut digests to the digits that identify them."""
    return _DIGEST.sub(lambda digest: digest[0][:_DIGITS], text)


def _shown(value: Any) -> str:
    return encoded_values.shortened(encoded_values.text(value) if isinstance(value, list) else repr(value))


# The components whose details are not mappings to compare item by item.
_COMPARE: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], list[Difference]]] = {
    "graph": _graph,
    "inputs": _inputs,
    "shapes": _shapes,
    "ambient": _ambient,
    "code": _code,
}


# ---------------------------------------------------------------- for people


def lines(differences: Sequence[Difference]) -> list[str]:
    """Return one line per difference; after the first `_SHOWN` of a component, one line with a count."""
    shown: list[str] = []
    for component, group in itertools.groupby(differences, key=lambda difference: difference.component):
        items = [str(difference) for difference in group]
        shown += items[:_SHOWN]
        shown += [f"{component}: {len(items) - _SHOWN} more"] if len(items) > _SHOWN else []
    return shown
