"""The differences between stock Inductor and fxpool over the items of a sweep. No torch, no processes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from .record import CRASH, RIGHT, SKIP, Record

__all__ = [
    "BETTER", "IN_PROCESS", "LOST_CACHING", "LOST_RESULT", "SAME", "Difference", "Runs", "compare", "differences",
    "summary",
]  # fmt: skip

SAME, BETTER = "same", "better"
LOST_RESULT, LOST_CACHING, IN_PROCESS = "lost in result", "lost in caching", "in the user's process"

Runs = Sequence[Record]
"""An item's records under one back end: of the first process, and of the second one with the same directories."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """One thing in which the back ends differ for an item, and the evidence for it."""

    key: str
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.key}: {self.detail}"


def compare(key: str, stock: Runs, ours: Runs) -> list[Difference]:
    """Return the differences of one item: none, or several.

    An item without a record counts as one whose process died: a run that stops early has lost what it did not reach.
    """
    stocks, own = _all(stock), _all(ours)
    if SKIP in (record.status for record in stocks):
        return []
    found: list[Difference] = []

    def add(kind: str, detail: str) -> None:
        found.append(Difference(key, kind, detail))

    right, ours_right = _right(stocks), _right(own)
    if right and not ours_right:
        number, record = next((n, r) for n, r in enumerate(own) if r.status != RIGHT)
        add(LOST_RESULT, f"{record.status} in the {_ORDINALS[number]} process: {record.detail} ({record.reasons})")
    elif ours_right and not right:
        record = next(r for r in stocks if r.status != RIGHT)
        add(BETTER, f"stock: {record.status}: {record.detail}")
    lowered = next(((n, r) for n, r in enumerate(own) if r.lowerings or r.in_process), None)
    if lowered is not None:
        number, record = lowered
        counts = f"{record.lowerings} lowered, {record.in_process} counted in the {_ORDINALS[number]} process"
        add(IN_PROCESS, f"{counts}: {record.reasons}")
    # Whether an item is kept says nothing where one of the two does not get so far.
    if right and ours_right and len(stock) > 1 and len(ours) > 1 and stocks[1].graphs and own[1].graphs:
        kept, ours_kept = not stocks[1].lowerings, _kept(own[1])
        if kept and not ours_kept:
            counts = f"{own[1].hits} hits, {own[1].in_worker} compiled in workers, {own[1].in_process} here"
            add(LOST_CACHING, f"the second process has {counts}: {own[1].reasons}")
        elif ours_kept and not kept:
            add(BETTER, f"stock lowers {stocks[1].lowerings} graphs again in the second process")
    return found


_ORDINALS = ("first", "second")


def _all(runs: Runs) -> list[Record]:
    return list(runs) or [Record("", CRASH, "no record")]


def _right(runs: Runs) -> bool:
    return all(record.status == RIGHT for record in runs)


def _kept(second: Record) -> bool:
    # Dynamo's graphs may have nothing to compile; then there is nothing to hit.
    return not second.compiled and not second.lowerings and bool(second.hits)


def differences(stock: Mapping[str, Runs], ours: Mapping[str, Runs]) -> list[Difference]:
    """Return the differences over all items that one of the back ends ran."""
    return [found for key in sorted({*stock, *ours}) for found in compare(key, stock.get(key, ()), ours.get(key, ()))]


def summary(sweep: str, keys: Sequence[str], differences: Sequence[Difference]) -> str:
    """A sweep's line: how many items are the same, and how many differ in which way (an item may in several)."""
    differing = {one.key for one in differences}
    counts = Counter(kind for _, kind in {(one.key, one.kind) for one in differences})
    columns = [f"{sum(key not in differing for key in keys)} {SAME}"]
    columns += [f"{counts[kind]} {kind}" for kind in (BETTER, LOST_RESULT, LOST_CACHING, IN_PROCESS)]
    return f"{sweep}: {len(keys)} items: " + ", ".join(columns)
