"""Finds the stored graph that is nearest to a graph that was a miss, because their differences explain the miss best.

Graphs of the same function of the program come first, then those with the most equal components, then those with the
fewest differences in the other components, then the youngest.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from fxpool.codecache.explain import comparison
from fxpool.codecache.explain.comparison import Described, Difference
from fxpool.codecache.guards import guards
from fxpool.codecache.key.components import COMPONENTS
from fxpool.codecache.store.entry import Component, Entry, Origin
from fxpool.results import markup

__all__ = ["NEAREST", "Comparison", "Side", "compared", "likeness", "nearest"]

# The most entries with equally many equal components that are compared in detail.
_COMPARED = 6
_SHOWN = 60  # differences in HTML

#: The two sides of a comparison of a graph with the nearest entry.
NEAREST = ("nearest entry", "this graph")


@dataclass(frozen=True)
class Side:
    """One side of a comparison: the key of an entry, or of a graph that was a miss. `name` is the entry's name."""

    key: str
    components: tuple[Component, ...]
    detail: bytes
    origin: Origin | None = None
    label: str = ""
    created: float = 0.0
    name: str = ""
    guards: tuple[Any, ...] = ()

    @classmethod
    def of(cls, entry: Entry) -> Side:
        meta = entry.metadata
        return cls(
            entry.key, tuple(entry.components), entry.detail, meta.origin, meta.label, meta.created, entry.name,
            tuple(entry.guards),
        )  # fmt: skip

    @property
    def function(self) -> str:
        """The function and its place, or the label: ``GPT2.forward, gpt2.py:12``."""
        if self.origin is None or not self.origin.name:
            return self.label
        return self.origin.described

    def described(self) -> Described:
        return Described.of(self.components, self.detail)


@dataclass(frozen=True, repr=False)
class Comparison:
    """The comparison of two keys: names of `equal` components, and the `differences` of the others.

    Entries with one key differ in their guards, listed as differences of the component ``guards``. `a` and `b`
    are keys, `a_is` and `b_is` their functions. `roles` are names for the two, such as `NEAREST`, or empty.
    """

    a: str
    b: str
    a_is: str
    b_is: str
    equal: tuple[str, ...]
    differences: tuple[Difference, ...]
    roles: tuple[str, str] = ("", "")

    def without(self, components: Collection[str]) -> Comparison:
        """Return the comparison without the differences of some components."""
        kept = tuple(one for one in self.differences if one.component not in components)
        return dataclasses.replace(self, differences=kept) if kept != self.differences else self

    def __str__(self) -> str:
        text = markup.text_table((), [row[not self.roles[0] :] for row in self._sides()])
        lines = [f"  {line}" for line in comparison.lines(self.differences) or [self._no_difference()]]
        if self.equal and self.differences:
            lines.append(f"  equal: {', '.join(self.equal)}")
        return "\n".join([text, *lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        before, after = (role or key[:12] for role, key in zip(self.roles, (self.a, self.b), strict=True))
        rows = [
            (f"{one.component}: {one.item}" if one.item else one.component, one.before or "", one.after or "")
            for one in self.differences[:_SHOWN]
        ]
        more = len(self.differences) - _SHOWN
        rows += [(f"{more} more", "", "")] if more > 0 else []
        sides = markup.table([(role, f"{key}  {function}") for role, key, function in self._sides()])
        equal = [("equal", ", ".join(self.equal))] if self.equal else []
        if not rows:
            return sides + markup.table([("", self._no_difference())])
        return sides + markup.grid(("difference", before, after), rows) + markup.table(equal)

    def _sides(self) -> list[tuple[str, str, str]]:
        one, other = self.roles
        return [(one, self.a[:12], self.a_is), (other, self.b[:12], self.b_is)]

    def _no_difference(self) -> str:
        return "only the function differs" if len(self.equal) < len(COMPONENTS) else "no difference"


def compared(a: Side, b: Side, roles: tuple[str, str] = ("", "")) -> Comparison:
    """Compare two keys, or the guards of two entries with one key, from `a` to `b`; `roles` name the two."""
    one, other = a.described(), b.described()
    found = comparison.differences(one, other) if a.key != b.key else _guards(a, b)
    return Comparison(
        a.key, b.key, a.function, b.function, tuple(comparison.equal_components(one, other)), found, roles
    )


def _guards(a: Side, b: Side) -> tuple[Difference, ...]:
    ours, theirs = ({_rendered(guard) for guard in side.guards} for side in (a, b))
    return tuple(
        Difference("guards", "", guard if guard in ours else None, guard if guard in theirs else None)
        for guard in sorted(ours ^ theirs)
    )


def _rendered(guard: Any) -> str:
    try:
        return guards.render(guard)
    except guards.UnknownGuardError:
        return repr(guard)


def nearest(side: Side, entries: Iterable[Entry]) -> Side | None:
    """Return the entry that is nearest to `side`, other than itself, or None.

    Keys without a common component are of different kinds, such as a graph's and that of a product of another JIT.
    """
    digests = {one.name: one.digest for one in side.components}
    others = (
        entry
        for entry in entries
        if (entry.key, entry.name) != (side.key, side.name)
        and (not digests or not entry.components or any(one.name in digests for one in entry.components))
    )
    best = heapq.nlargest(_COMPARED, others, key=lambda entry: (*_nearness(side, digests, entry), entry.key))
    if not best:
        return None
    first = _nearness(side, digests, best[0])[:2]
    equal = [entry for entry in best if _nearness(side, digests, entry)[:2] == first]
    if len(equal) == 1:
        return Side.of(equal[0])
    own = side.described()

    def differences(entry: Entry) -> int:
        return len(comparison.differences(own, Described.of(entry.components, entry.detail)))

    return Side.of(min(equal, key=lambda entry: (differences(entry), -entry.metadata.created, entry.key)))


def _nearness(side: Side, digests: dict[str, str], entry: Entry) -> tuple[int, int, float]:
    equal = sum(digests.get(one.name) == one.digest for one in entry.components)
    return likeness(side.origin, entry.metadata.origin), equal, entry.metadata.created


def likeness(a: Origin | None, b: Origin | None) -> int:
    """Return how alike two functions are, from 0 (different functions) to 3 (the same part of the same function)."""
    if a is None or b is None or not a.name or (a.model, a.function) != (b.model, b.function) or a.part != b.part:
        return 0
    return 1 + (a.file == b.file) + ((a.line, a.resumed) == (b.line, b.resumed))
