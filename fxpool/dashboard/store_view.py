"""The store's entries, their sizes, and the misses behind them, read from its files, as servers don't know the store.

A hit sets the time of an entry's file, and the dashboard counts hits by these times. The count is a lower limit, since
several hits between two polls count once, and of hits before the dashboard started only each entry's last is known.
Exact counts are per process, in `fxpool.stats()`.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from fxpool.codecache.store import catalogue, host_statistics, quarantine
from fxpool.codecache.store.blobs import check_directory
from fxpool.codecache.store.listing import Listing, Row, Scanned, why_made
from fxpool.errors import StoreError

__all__ = ["Contents", "StoreView"]

# Seconds after an entry's creation from which a new time of its file counts as a use.
_LATER = 2.0
# Earlier entries of the same function that an entry is compared with.
_COMPARED = 30
_SERVED_KEPT = 5000
# Seconds between two measurements of the directory, which stat every file.
_MEASURE_SECONDS = 15.0
# A look may take a twentieth of the time between two.
_SHARE = 20


class Contents(NamedTuple):
    """The result of one poll of the store; `parts` is None if the directory was not measured.

    `counted` are the host's tables of reasons of the last 30 days (`host_statistics.Totals.reasons`).
    """

    state: str
    reason: str
    entries: list[Scanned]
    parts: dict[str, dict[str, int]] | None
    quarantined: list[quarantine.Record]
    counted: dict[str, dict[str, int]]
    took: float  # seconds


class StoreView:
    """One store. Not thread-safe, but `read`, which blocks, may run beside methods that change nothing."""

    def __init__(self, root: str, clock: Callable[[], float] = time.time) -> None:
        self.root = os.path.abspath(os.path.expanduser(root))
        self.state, self.reason = "none", ""
        self.listing = Listing(self.root)
        #: (Unix time, seconds saved) of each hit, the latest last; `served_count` includes hits dropped from here.
        self.served: deque[tuple[float, float]] = deque(maxlen=_SERVED_KEPT)
        self.served_count = 0
        self.seconds_saved = 0.0
        self.parts: dict[str, dict[str, int]] = {}
        self.quarantined: list[quarantine.Record] = []
        self.counted: dict[str, dict[str, int]] = {}
        self.reasons: Counter[str] = Counter()
        self._why: dict[tuple[str, str], tuple[Row, list[str]]] = {}
        self._by_graph: dict[str, list[tuple[float, str, str]]] = {}
        self._seen_uses: dict[tuple[str, str], int] = {}
        self._clock = clock
        self._measured = float("-inf")
        self._took = 0.0

    @property
    def pause(self) -> float:
        """Seconds to wait before the next look: longer where a look is long."""
        return max(1.0, _SHARE * self._took)

    def look(self) -> None:
        """Bring everything up to date."""
        self.take(self.read())

    def read(self) -> Contents:
        """Look at the files; changes nothing here. A directory that is refused, or is not there, has no entries."""
        begun = time.monotonic()
        try:
            check_directory(self.root)
        except StoreError as error:
            return Contents("refused", str(error), [], None, [], {}, 0.0)
        there = os.path.isdir(self.root)
        entries = self.listing.read()
        parts, quarantined, counted = None, self.quarantined, self.counted
        if begun - self._measured >= _MEASURE_SECONDS:
            with contextlib.suppress(OSError):
                sizes = catalogue.measure(self.root)
                parts = {kind: {"files": one.files, "bytes": one.bytes} for kind, one in sizes.items() if one.bytes}
            quarantined = list(quarantine.scan(self.root))
            counted = host_statistics.added(host_statistics.read(self.root).values()).reasons
        took = time.monotonic() - begun
        reason = "" if there else "the directory does not exist"
        return Contents("there" if there else "none", reason, entries, parts, quarantined, counted, took)

    def take(self, read: Contents) -> None:
        """Take over what the latest `read` returned, and draw conclusions from it."""
        self.state, self.reason, self._took, self.quarantined = read.state, read.reason, read.took, read.quarantined
        self.counted = read.counted
        if read.parts is not None:
            self.parts, self._measured = read.parts, time.monotonic()
        before = self.listing.latest
        if self.listing.take(read.entries):
            self._take(before)

    def rows(self, change: int) -> tuple[list[dict[str, Any]], list[list[str]]]:
        """Return (rows of entries that changed after `change`, [key, name] of those removed after it)."""
        changed, removed = self.listing.since(change)
        return [self._shown(row) for row in changed], [list(which) for which in removed]

    def served_since(self, count: int) -> list[tuple[float, float]]:
        """Return the hits after the first `count`, without those that were dropped."""
        new = min(self.served_count - count, len(self.served))
        return list(self.served)[len(self.served) - new :] if new > 0 else []

    def why(self, key: str, name: str) -> tuple[Row, list[str]] | None:
        """Return (the nearest earlier entry, what differs from it), or None for the first of its function."""
        return self._why.get((key, name))

    def facts(self) -> dict[str, Any]:
        """Return sizes and counts as plain data."""
        rows = self.listing.rows.values()
        return {
            "directory": self.root,
            "state": self.state,
            "reason": self.reason,
            "entries": len(rows),
            "unreadable": sum(not row.readable for row in rows),
            "seconds": round(sum(row.metadata.compile_seconds for row in rows), 3),
            "parts": self.parts,
            "counted": self.counted,
            "served": self.served_count,
            "seconds_saved": round(self.seconds_saved, 3),
            "reasons": dict(self.reasons.most_common()),
            "first": sum(row.readable for row in rows) - len(self._why),
        }

    def _take(self, before: int) -> None:
        """Draw conclusions from rows that changed after `before`, and forget those of entries that are gone."""
        changed, removed = self.listing.since(before)
        for row in sorted(changed, key=lambda one: one.metadata.created):
            which = (row.key, row.name)
            known = self._seen_uses.get(which)
            if known is None or row.uses < known:
                self._add(row)
                if row.readable and row.used > row.metadata.created + _LATER:
                    self._serve(row)
            elif row.uses > known:
                self._serve(row)
            self._seen_uses[which] = row.uses
        for which in removed:
            self._seen_uses.pop(which, None)
            if (why := self._why.pop(which, None)) is not None:
                self.reasons.subtract(why[1])
        self.reasons = +self.reasons

    def _serve(self, row: Row) -> None:
        self.served.append((round(row.used, 3), row.metadata.compile_seconds))
        self.served_count += 1
        self.seconds_saved += row.metadata.compile_seconds

    def _add(self, row: Row) -> None:
        if not row.readable:
            return
        group = self._by_graph.setdefault(row.graph, [])
        mine = (row.metadata.created, row.key, row.name)
        at = bisect.bisect_left(group, mine)
        earlier = [self.listing.rows.get((key, name)) for _, key, name in group[max(0, at - _COMPARED) : at]]
        why = why_made(row, [one for one in earlier if one is not None])
        if group[at : at + 1] != [mine]:
            group.insert(at, mine)
        if why is not None and (row.key, row.name) not in self._why:
            self._why[row.key, row.name] = why
            self.reasons.update(why[1])

    def _shown(self, row: Row) -> dict[str, Any]:
        why = self._why.get((row.key, row.name))
        meta = row.metadata
        return {
            "key": row.key,
            "name": row.name,
            "readable": row.readable,
            "label": meta.label,
            "function": meta.source.name,
            "place": meta.source.location,
            "inputs": ", ".join(meta.source.inputs),
            "torch": meta.torch_version,
            "created": round(meta.created, 3),
            "used": round(row.used, 3),
            "seconds": round(meta.compile_seconds, 3),
            "bytes": row.bytes,
            "guards": row.guards,
            "uses": row.uses,
            "why": why[1] if why is not None else [],
        }
