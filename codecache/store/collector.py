"""Keeps a cache directory within its limits: scans its files, lets `eviction` decide, and removes the chosen files.

    publication ─▶ scan the parts it wrote to, and the part scanned longest ago ─▶ index: size of the directory
                     └─ over the limits ─▶ evict: claim ─▶ scan every part ─▶ eviction.plan ─▶ entries, then blobs

The first line costs a publication a few milliseconds. The second takes seconds for a large directory: publishers leave
it to a job of the pool. While the index is new, each publication spends at most `_PATIENCE` seconds
on parts that the index does not have yet, and eviction waits until it has all of them. Without an index, the whole
directory is scanned, once in ten minutes.

There are no locks: eviction and lookups never wait for each other. Each file is checked again right before it is
removed, and stays if it was used or published since the decision. Entries are removed before their blobs, so a reader
gets a whole entry or a miss. The claim, a file created with O_EXCL, keeps several processes from doing the same work;
if two of them evict all the same, they remove the same files.

Which files count towards the limits, and which may be evicted:

    entries, blobs                        count; evicted as `eviction` says
    headers, directories                  count; evicted by the time of their last use, unless a process uses them
    kernels, failed, slower               count; evicted by the time of their last use
    aside                                 count; evicted first
    quarantine, other facts, index        count; never evicted
    files that are not fxpool's           don't count; never evicted
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from fxpool import notices
from fxpool.codecache.store import catalogue, eviction, layout, removal
from fxpool.codecache.store.blobs import check_directory, write_error
from fxpool.codecache.store.cache_limits import Bounds
from fxpool.codecache.store.catalogue import OTHERS, Part, Size, StoredEntry, StoredFile, sum_of
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.eviction import Plan
from fxpool.codecache.store.index import Index, IndexUnusableError

__all__ = ["Collected", "collect", "evict", "evicted", "is_full"]

log = notices.logger(__name__)

#: Seconds in which a claim keeps other processes from evicting, also from a directory that stays over its limits.
_CLAIMED_FOR = 60.0
#: Seconds that one publication spends on scanning parts that are not in the index yet.
_PATIENCE = 0.25
#: Seconds between scans of the files that are neither entries nor blobs, if there are many; without a usable index,
#: seconds between scans of the whole directory.
_REST_EVERY = 600.0
_REST_IS_SMALL = 1000
#: Files removed between two renewals of the claim, which show that its owner is alive.
_SIGN_EVERY = 64


@dataclass(frozen=True)
class Collected:
    """The result of an eviction: numbers of removed `entries`, `blobs` and `others`, and their total size (`freed`).

    `before` is the size that counted towards the limits, and `over` tells whether the remaining files exceed them.
    `stuck`: the remaining files are in use or can't be removed, so another try would not help soon. `failed` is the
    number of files that could not be removed. After a dry run, `entries`, `blobs`, `others` and `freed` are those of
    the plan.
    """

    entries: int = 0
    blobs: int = 0
    others: int = 0
    freed: Size = field(default_factory=Size)
    before: Size = field(default_factory=Size)
    over: bool = False
    stuck: bool = False
    failed: int = 0


def is_full(root: str, entry: Entry, bounds: Bounds) -> bool:
    """Update the index after a publication; return whether to evict: the directory is over its limits, unclaimed.

    Without a usable index, the whole directory is due for a scan every ten minutes. Raises OSError, StoreError.
    """
    if bounds.max_bytes is None and bounds.max_files is None:
        return False
    written = {
        f"{layout.ENTRIES}/{entry.key[:2]}",
        *(f"{layout.BLOBS}/{ref.digest[:2]}" for ref in entry.blobs.values()),
    }
    try:
        size = _refresh(root, Index(root), written)
    except IndexUnusableError as error:
        log.info("%s", error)
        return not _is_claimed(root, _REST_EVERY)
    return size is not None and size.over(bounds) and not _is_claimed(root, _CLAIMED_FOR)


def evict(root: str, bounds: Bounds) -> Collected:
    """Evict down to the limits, unless another process has claimed the directory. Raises OSError, StoreError."""
    check_directory(root)
    try:
        Index(root).look()
        every = _CLAIMED_FOR
    except IndexUnusableError:
        every = _REST_EVERY
    now = _claim(root, every)
    if now is None:
        return Collected()
    collected = _collect(root, bounds, now)
    if not collected.stuck and every == _CLAIMED_FOR:
        _release(root)
    return collected


def _refresh(root: str, index: Index, written: Iterable[str]) -> Size | None:
    """Scan some parts of the directory again; return the total size, None if the index lacks some parts."""
    deadline = time.monotonic() + _PATIENCE
    known, present = index.look().parts, set(catalogue.part_names(root))
    now = time.time()
    again = {name for name in written if name in present}
    if OTHERS in known and (known[OTHERS][0].files < _REST_IS_SMALL or now - known[OTHERS][1] > _REST_EVERY):
        again.add(OTHERS)
    missing = sorted(present - known.keys() - again)
    if not missing and (others := present - again - {OTHERS}):
        again.add(min(others, key=lambda name: known[name][1]))
    parts = [catalogue.scan(root, name) for name in sorted(again)]
    for name in missing:
        if time.monotonic() > deadline:
            break
        parts.append(catalogue.scan(root, name))
    summary = index.update(parts, gone=known.keys() - present)
    return summary.size if present <= summary.parts.keys() else None


def collect(root: str, bounds: Bounds, *, dry_run: bool = False) -> Collected:
    """Evict down to the limits, even if another process is evicting.

    Raises UnsafeDirectoryError, StoreWriteError, OSError.
    """
    check_directory(root)
    if not os.path.isdir(root):
        return Collected()
    if dry_run:
        parts = _scan(root)
        planned = _plan(parts, bounds, time.time())
        return Collected(
            entries=len(planned.entries),
            blobs=len(planned.blobs),
            others=sum(one.size.files for one in planned.others),
            freed=planned.freed,
            before=_size(parts),
            over=planned.over,
            stuck=planned.over,
        )
    _release(root)
    now = _claim(root, _CLAIMED_FOR)
    collected = _collect(root, bounds, time.time() if now is None else now)
    _release(root)
    return collected


def evicted(root: str) -> Size | None:
    """Return how many entries were evicted since the index was created, and the freed bytes; None without an index."""
    index = Index(root)
    if not index.exists():
        return None
    try:
        return index.look().evicted
    except IndexUnusableError:
        return None


# ---------------------------------------------------------------- one at a time


def _is_claimed(root: str, every: float) -> bool:
    """Return whether a process has claimed the directory in the last `every` seconds."""
    try:
        return abs(time.time() - os.lstat(os.path.join(root, layout.CLAIM)).st_mtime) < every
    except FileNotFoundError:
        return False


def _claim(root: str, every: float) -> float | None:
    """Claim the directory; return the time by the clock of the file system, or None if a recent claim exists.

    Raises StoreWriteError.
    """
    path = os.path.join(root, layout.CLAIM)
    for _ in range(2):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            if _is_claimed(root, every):
                return None
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # its process died, or could not evict enough
            continue
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return time.time()  # the disk is full: evict without a claim
            raise write_error(f"cannot evict from {root}", error) from error
        with open(descriptor, "wb") as file:
            return os.fstat(file.fileno()).st_mtime
    return None


def _release(root: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(root, layout.CLAIM))


# ---------------------------------------------------------------- scanning


def _scan(root: str) -> list[Part]:
    """Scan every part, and read the entries."""
    return [catalogue.scan(root, name, contents=True) for name in catalogue.part_names(root)]


def _size(parts: Iterable[Part]) -> Size:
    return sum_of(part.size for part in parts)


def _plan(parts: list[Part], bounds: Bounds, now: float) -> Plan:
    entries = [one for part in parts for one in part.entries]
    blobs = [one for part in parts if part.name != OTHERS for one in part.files]
    others = [one for part in parts if part.name == OTHERS for one in part.files]
    return eviction.plan(entries, blobs, others, _size(parts), bounds, now)


# ---------------------------------------------------------------- removing


def _collect(root: str, bounds: Bounds, now: float) -> Collected:
    parts = _scan(root)
    before = _size(parts)
    removed = _Removal(root)
    planned = _plan(parts, bounds, now)
    removed.entries(planned.entries)
    removed.blobs(planned.blobs)
    removed.others(planned.others)
    left, emptied = removed.parts_left(parts)
    freed = removed.freed
    with contextlib.suppress(IndexUnusableError):
        evicted = Size(removed.counts[layout.ENTRIES], max(0, freed.bytes))
        Index(root).update(left, gone=emptied, evicted=evicted)
    if freed.files or removed.failed:
        log.info(
            "evicted %d entries, %d blobs and %d other files (%d bytes) of %s; %d could not be removed",
            *removed.counts.values(),
            freed.bytes,
            root,
            removed.failed,
        )
    return Collected(
        entries=removed.counts[layout.ENTRIES],
        blobs=removed.counts[layout.BLOBS],
        others=removed.counts[OTHERS],
        freed=freed,
        before=before,
        over=(before - freed - removed.vanished).over(bounds),
        stuck=planned.over or removed.busy or removed.failed > 0,
        failed=removed.failed,
    )


class _Removal:
    """Removes planned files one by one, unless they have changed since the scan."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._spared: set[str] = set()  # blobs of planned entries that changed and therefore stay
        self._gone: dict[str, Size] = {}  # removed path: its size
        self.counts = dict.fromkeys((layout.ENTRIES, layout.BLOBS, OTHERS), 0)
        self.vanished = Size()
        self.failed = 0
        self.busy = False  # a header or a directory is in use

    @property
    def freed(self) -> Size:
        return sum_of(self._gone.values())

    def entries(self, entries: Iterable[StoredEntry]) -> None:
        for entry in entries:
            if self._remove(entry, layout.ENTRIES):
                layout.remove_empty(os.path.dirname(os.path.join(self._root, entry.path)))
            else:
                self._spared.update(entry.blobs or ())

    def blobs(self, blobs: Iterable[StoredFile]) -> None:
        for blob in blobs:
            if blob.name not in self._spared:
                self._remove(blob, layout.BLOBS)

    def others(self, others: Iterable[StoredFile]) -> None:
        for one in others:
            above = os.path.dirname(one.path)
            if above not in (layout.HEADERS_DIRECTORY, layout.BUILT_DIRECTORY):
                self._remove(one, OTHERS)
            elif removal.remove_group(self._root, one):
                self._gone[one.path] = one.size
                self.counts[OTHERS] += one.size.files
            else:
                self.busy = True

    def _remove(self, file: StoredFile, kind: str) -> bool:
        """Remove a file, unless it was used or replaced since the scan; return whether it is gone."""
        path = os.path.join(self._root, file.path)
        try:
            if catalogue.identify(os.lstat(path)) != file.state:
                return False
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            self._gone[file.path] = Size()
            self.vanished += file.size  # another process removed and counted it
            return True
        except OSError:
            self.failed += 1
            return False
        self._gone[file.path] = file.size
        self.counts[kind] += 1
        if len(self._gone) % _SIGN_EVERY == 0:
            with contextlib.suppress(OSError):
                os.utime(os.path.join(self._root, layout.CLAIM))
        return True

    def parts_left(self, parts: Iterable[Part]) -> tuple[list[Part], list[str]]:
        """Remove empty directories; return the parts with their sizes now, and the names of removed parts."""
        lost: dict[str, Size] = {}
        for path, size in self._gone.items():
            name = catalogue.part_of(path)
            lost[name] = lost.get(name, Size()) + size
        left: list[Part] = []
        emptied: list[str] = []
        for part in parts:
            size = part.size - lost.get(part.name, Size())
            if part.name != OTHERS and not size.files and layout.remove_empty(os.path.join(self._root, part.name)):
                emptied.append(part.name)
                self._gone[part.name] = Size(0, size.bytes)
            else:
                left.append(Part(part.name, size, seen=part.seen))
        return left, emptied
