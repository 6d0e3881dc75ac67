"""Decides which files to evict from a cache directory that is over its limits. A pure function of plain data.

    entries, blobs, other files, limits, now  ──▶  plan  ──▶  files to remove, in this order

The least recently used files are evicted first; of two that were used at the same time, the one that compiled faster.
Eviction continues to a low watermark of the exceeded limit, so that the next publications evict nothing.

A blob is evicted when no remaining entry names it. Files that were used or written within `Bounds.grace` stay: a
publisher writes blobs before the entry that names them, a worker replies with an entry that its client is about to
load, and a process that has read an entry may still be reading its blobs. Code that is already loaded no longer needs
its files.

An entry that can't be read (damaged, or of another version) may need any blob that is not younger than itself. Such a
blob is not garbage, and is evicted by its age like an entry.

This module reads no file and no clock; `collector` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from fxpool.codecache.store import layout
from fxpool.codecache.store.cache_limits import Bounds
from fxpool.codecache.store.catalogue import Size, StoredEntry, StoredFile, sum_of

__all__ = ["LOW_WATERMARK", "Plan", "orphans", "plan"]

#: Fraction of a limit that eviction goes down to.
LOW_WATERMARK = 0.9


class Plan(msgspec.Struct, frozen=True):
    """The files to remove, in order, and the size that this frees. `over`: the remaining files exceed the limits."""

    entries: list[StoredEntry] = msgspec.field(default_factory=list)
    blobs: list[StoredFile] = msgspec.field(default_factory=list)
    others: list[StoredFile] = msgspec.field(default_factory=list)
    freed: Size = Size()
    over: bool = False


def plan(
    entries: Sequence[StoredEntry],
    blobs: Sequence[StoredFile],
    others: Sequence[StoredFile],
    total: Size,
    bounds: Bounds,
    now: float,
) -> Plan:
    """Return which files to remove from a directory to keep it within `bounds`.

    `total` is the size of all files, including those that can't be removed; `now` is Unix time by the clock of the file
    system. Blobs that no entry can need are always removed.
    """
    rubbish, doubtful = orphans(entries, blobs, now, bounds.grace)
    freed = sum_of(one.size for one in rubbish)
    goal = _goal(total, bounds)
    removed = Plan(blobs=rubbish)
    needed = Counter(name for entry in entries for name in set(entry.blobs or ()))
    by_name = {blob.name: blob for blob in blobs}
    candidates = [one for one in (*entries, *doubtful, *others) if not _lately(one.used, now, bounds.grace)]
    for one in sorted(candidates, key=_turn):
        if not (total - freed).over(goal):
            break
        freed += one.size
        if isinstance(one, StoredEntry):
            removed.entries.append(one)
            for name in set(one.blobs or ()):
                needed[name] -= 1
                blob = by_name.get(name)
                if blob is not None and not needed[name] and not _lately(blob.used, now, bounds.grace):
                    removed.blobs.append(blob)
                    freed += blob.size
        elif one.path.startswith(f"{layout.BLOBS}/"):
            removed.blobs.append(one)
        else:
            removed.others.append(one)
    return Plan(removed.entries, removed.blobs, removed.others, freed, over=(total - freed).over(bounds))


def _turn(file: StoredFile) -> tuple[float, float, str]:
    """Return the sort key of eviction: least recently used, then fastest to compile, then by name."""
    return file.used, file.seconds if isinstance(file, StoredEntry) else 0.0, file.path


def orphans(
    entries: Iterable[StoredEntry], blobs: Iterable[StoredFile], now: float, grace: float
) -> tuple[list[StoredFile], list[StoredFile]]:
    """Return (blobs that no entry can need, blobs that only an unreadable entry could need), without recent ones."""
    needed: set[str] = set()
    unreadable = float("-inf")
    for entry in entries:
        if entry.blobs is None:
            unreadable = max(unreadable, entry.used)
        else:
            needed.update(entry.blobs)
    rubbish: list[StoredFile] = []
    doubtful: list[StoredFile] = []
    for blob in blobs:
        if blob.name not in needed and not _lately(blob.used, now, grace):
            (doubtful if blob.used <= unreadable else rubbish).append(blob)
    return rubbish, doubtful


def _lately(when: float, now: float, grace: float) -> bool:
    """Return whether `when` is within `grace` of `now`. False for times further in the future: a clock was set back."""
    return abs(now - when) < grace


def _goal(total: Size, bounds: Bounds) -> Bounds:
    """Return the limits to evict down to: the low watermark of each exceeded limit, the others unchanged."""

    def of(value: int, limit: int | None) -> int | None:
        return int(limit * LOW_WATERMARK) if limit is not None and value > limit else limit

    return Bounds(of(total.bytes, bounds.max_bytes), of(total.files, bounds.max_files))
