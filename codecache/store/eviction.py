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

from fxpool.codecache.store.bounds import Bounds
from fxpool.codecache.store.pace import Pace, paced_sort, unpaced

__all__ = [
    "LOW_WATERMARK",
    "KeptBlob",
    "KeptEntry",
    "OtherFiles",
    "Plan",
    "Size",
    "orphans",
    "plan",
    "sum_of",
]

#: Fraction of a limit that eviction goes down to.
LOW_WATERMARK = 0.9


class Size(msgspec.Struct, frozen=True, gc=False):
    """A number of `files`, and the `bytes` that they take on the disk with their directories."""

    files: int = 0
    bytes: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.files + other.files, self.bytes + other.bytes)

    def __sub__(self, other: Size) -> Size:
        return Size(self.files - other.files, self.bytes - other.bytes)

    def over(self, bounds: Bounds) -> bool:
        """Return whether the size exceeds one of the limits."""
        return _exceeds(self.bytes, bounds.max_bytes) or _exceeds(self.files, bounds.max_files)


class KeptEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry's file. `used` is Unix time; `blobs` has the names of its blobs, None if the entry can't be read."""

    key: str
    name: str
    size: Size
    used: float
    seconds: float
    blobs: tuple[str, ...] | None


class KeptBlob(msgspec.Struct, frozen=True, gc=False):
    """A blob's file. `written` is the Unix time of its last publication."""

    name: str
    size: Size
    written: float


class OtherFiles(msgspec.Struct, frozen=True):
    """Files that may be removed together: a record, a precompiled header. `path` is below the root."""

    path: str
    size: Size
    used: float


class Plan(msgspec.Struct, frozen=True):
    """The files to remove, in order, and the size that this frees. `over`: the remaining files exceed the limits."""

    entries: list[KeptEntry] = msgspec.field(default_factory=list)
    blobs: list[KeptBlob] = msgspec.field(default_factory=list)
    others: list[OtherFiles] = msgspec.field(default_factory=list)
    freed: Size = Size()
    over: bool = False


def plan(
    entries: Sequence[KeptEntry],
    blobs: Sequence[KeptBlob],
    others: Sequence[OtherFiles],
    rest: Size,
    bounds: Bounds,
    now: float,
    pace: Pace = unpaced,
) -> Plan:
    """Return which files to remove from a directory to keep it within `bounds`.

    `rest` is the size of all files that can't be removed; `now` is Unix time by the clock of the file system. Blobs
    that no entry can need are always removed. `pace` lets other threads run during the work.
    """
    files: list[KeptEntry | KeptBlob | OtherFiles] = [*entries, *blobs, *others]
    total = sum_of(one.size for one in pace(files)) + rest
    rubbish, doubtful = orphans(entries, blobs, now, bounds.grace, pace)
    freed = sum_of(one.size for one in rubbish)
    goal = _goal(total, bounds)
    if _met(total - freed, goal):
        return Plan([], rubbish, [], freed, over=False)

    needed = Counter(name for entry in pace(entries) for name in set(entry.blobs or ()))
    by_name = {blob.name: blob for blob in pace(blobs)}
    may_go: list[KeptEntry | KeptBlob | OtherFiles] = [*entries, *doubtful, *others]
    candidates = (one for one in may_go if not _lately(_turn(one)[0], now, bounds.grace))

    removed = Plan(blobs=rubbish)
    for one in paced_sort(candidates, _turn, pace):
        if _met(total - freed, goal):
            break
        freed += one.size
        if isinstance(one, KeptBlob):
            removed.blobs.append(one)
        elif isinstance(one, OtherFiles):
            removed.others.append(one)
        else:
            removed.entries.append(one)
            for name in set(one.blobs or ()):
                needed[name] -= 1
                blob = by_name.get(name)
                if blob is not None and not needed[name] and not _lately(blob.written, now, bounds.grace):
                    removed.blobs.append(blob)
                    freed += blob.size
    return Plan(removed.entries, removed.blobs, removed.others, freed, over=(total - freed).over(bounds))


def _turn(one: KeptEntry | KeptBlob | OtherFiles) -> tuple[float, float, str]:
    """Return the sort key of eviction: least recently used, then fastest to compile, then by name."""
    if isinstance(one, KeptEntry):
        return one.used, one.seconds, f"{one.key}/{one.name}"
    if isinstance(one, KeptBlob):
        return one.written, 0.0, one.name
    return one.used, 0.0, one.path


def orphans(
    entries: Iterable[KeptEntry], blobs: Iterable[KeptBlob], now: float, grace: float, pace: Pace = unpaced
) -> tuple[list[KeptBlob], list[KeptBlob]]:
    """Return (blobs that no entry can need, blobs that only an unreadable entry could need), without recent ones."""
    needed: set[str] = set()
    unreadable = float("-inf")
    for entry in pace(entries):
        if entry.blobs is None:
            unreadable = max(unreadable, entry.used)
        else:
            needed.update(entry.blobs)
    rubbish: list[KeptBlob] = []
    doubtful: list[KeptBlob] = []
    for blob in pace(blobs):
        if blob.name not in needed and not _lately(blob.written, now, grace):
            (doubtful if blob.written <= unreadable else rubbish).append(blob)
    return rubbish, doubtful


def sum_of(sizes: Iterable[Size]) -> Size:
    """Return the sum of sizes."""
    files = in_bytes = 0
    for size in sizes:
        files += size.files
        in_bytes += size.bytes
    return Size(files, in_bytes)


def _lately(when: float, now: float, grace: float) -> bool:
    """Return whether `when` is within `grace` of `now`. False for times further in the future: a clock was set back."""
    return abs(now - when) < grace


def _exceeds(value: int, limit: int | None) -> bool:
    return limit is not None and value > limit


def _goal(total: Size, bounds: Bounds) -> Bounds:
    """Return the limits to evict down to: the low watermark of each exceeded limit, the others unchanged."""

    def of(value: int, limit: int | None) -> int | None:
        return int(limit * LOW_WATERMARK) if limit is not None and value > limit else limit

    return Bounds(of(total.bytes, bounds.max_bytes), of(total.files, bounds.max_files))


def _met(size: Size, goal: Bounds) -> bool:
    return not size.over(goal)
