"""Explains a miss: names the nearest entry and the differences, the guard that failed, or the damage.

Miss          the record of a lookup, in its process (`lowering.artifact.miss_records`): key, sizes, rejected entries
explained     compares a miss with the current entries of a store
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fxpool.codecache.explain.nearest import NEAREST, Comparison, Side, compared, likeness, nearest
from fxpool.codecache.guards import guards
from fxpool.codecache.key.components import OF_A_FUNCTION
from fxpool.codecache.store.entry import Entry
from fxpool.results import markup

__all__ = [
    "DAMAGED", "GUARDS", "INCOMPLETE", "NOT_LOADED", "FailedGuard", "Miss", "MissExplanation", "Rejected", "explained",
    "failed_guards",
]  # fmt: skip

GUARDS, INCOMPLETE, NOT_LOADED, DAMAGED = "guards", "incomplete", "not_loaded", "damaged"

_WHY = {
    INCOMPLETE: "an entry of this key has a missing or damaged blob; it is written again",
    NOT_LOADED: "an entry of this key could not be loaded (see the log); it is written again",
    DAMAGED: "a damaged entry was set aside",
}


@dataclass(frozen=True)
class FailedGuard:
    """A condition of an entry that did not hold for this call, with the call's values of its symbols."""

    guard: str
    values: Mapping[str, Any]

    def __str__(self) -> str:
        values = ", ".join(f"{name} = {value}" for name, value in self.values.items())
        return f"{values}, but the entry needs {self.guard}" if values else f"the entry needs {self.guard}"


@dataclass(frozen=True)
class Rejected:
    """An entry under the graph's key that was not served, and why: one of the constants of this module."""

    name: str
    why: str
    guards: tuple[FailedGuard, ...] = ()


@dataclass(frozen=True)
class Miss:
    """A graph that was a miss. `kind` is ``miss`` or ``guard_miss``, `when` Unix time."""

    side: Side
    kind: str
    when: float
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True, repr=False)
class MissExplanation:
    """The reason why a graph was compiled: `why` is a sentence, the other fields are its details.

    `failed_guards` are those of entries under the same key. `nearest` is the comparison from the nearest entry of
    another key to this graph. `same_function` is false if that entry is of another function; differences of graph and
    inputs are then not shown.
    """

    label: str
    key: str
    graph_is: str
    kind: str
    when: float
    why: str
    failed_guards: tuple[FailedGuard, ...] = ()
    nearest: Comparison | None = None
    same_function: bool = True

    def __str__(self) -> str:
        text = [self._title(), *(f"  {guard}" for guard in self.failed_guards)]
        if (shown := self._shown()) is not None:
            text += [f"  {line}" for line in str(shown).splitlines()]
        return "\n".join(text)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [markup.table([("guard", str(guard)) for guard in self.failed_guards])] if self.failed_guards else []
        shown = self._shown()
        return markup.block(self._title(), *parts, *([shown._repr_html_()] if shown is not None else []))

    def _title(self) -> str:
        return f"{self.label}{f', {self.graph_is}' if self.graph_is != self.label else ''}: {self.why}"

    def _shown(self) -> Comparison | None:
        """Return the comparison without differences that mean nothing between two functions."""
        if self.nearest is None or self.same_function:
            return self.nearest
        return self.nearest.without(OF_A_FUNCTION)

    @property
    def first(self) -> str:
        """The first reason, on one line."""
        if self.failed_guards:
            return str(self.failed_guards[0])
        if self.nearest is not None and self.nearest.differences:
            shown = self._shown() or self.nearest
            first, *more = shown.differences or self.nearest.differences
            return f"{first}{f' (and {len(more)} more)' if more else ''}; the nearest entry is {self.nearest.a[:12]}"
        return self.why


def failed_guards(encoded: Sequence[Any], values: Mapping[str, Any]) -> tuple[FailedGuard, ...]:
    """Return the guards that do not hold for these values or cannot be evaluated."""
    failed = []
    for guard in encoded:
        try:
            if guards.evaluate(guard, values):
                continue
        except guards.UnknownGuardError:
            pass
        try:
            names = guards.free_symbol_names(guard)
            failed.append(FailedGuard(guards.render(guard), {n: values[n] for n in sorted(names) if n in values}))
        except guards.UnknownGuardError as error:
            failed.append(FailedGuard(str(error), {}))
    return tuple(failed)


def explained(miss: Miss, entries: Iterable[Entry]) -> MissExplanation:
    """Explain a miss with the entries of a store. Entries with the miss's key were compiled for it afterwards."""
    side = miss.side
    failed = tuple(guard for one in miss.rejected for guard in one.guards)
    other: Comparison | None = None
    same_function = True
    if failed:
        why = "the cache has entries of this graph, but none fits these sizes"
    elif miss.rejected:
        why = (
            "; ".join(dict.fromkeys(_WHY[one.why] for one in miss.rejected if one.why in _WHY))
            or "no entry fits this call"
        )
    else:
        found = nearest(side, (entry for entry in entries if entry.key != side.key))
        if found is None:
            why = "the cache held no other graph"
        else:
            other = compared(found, side, NEAREST)
            why = "the nearest cache entry differs"
            same_function = likeness(found.origin, side.origin) > 0
            if not same_function:
                why = "the cache has no graph of this function; the nearest entry differs"
    return MissExplanation(side.label, side.key, side.function, miss.kind, miss.when, why, failed, other, same_function)
