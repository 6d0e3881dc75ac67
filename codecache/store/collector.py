"""Keeps a cache directory within its limits: scans its files, lets `eviction` decide, and removes the chosen files.

    publication ─▶ scan the parts it wrote to, and the part scanned longest ago ─▶ index: size of the directory
                     └─ over the limits ─▶ claim ─▶ scan every part ─▶ eviction.plan ─▶ entries, then blobs

This costs a publication a few milliseconds. While the index is new, each publication spends at most `_PATIENCE` seconds
on parts that the index does not have yet, and eviction waits until it has all of them. Without an index, the whole
directory is scanned, once in ten minutes.

There are no locks: eviction and lookups never wait for each other. Each file is checked again right before it is
removed, and stays if it was used or published since the decision. Entries are removed before their blobs, so a reader
gets a whole entry or a miss. The claim, a file created with O_EXCL, keeps several processes from doing the same work;
if two of them evict all the same, they remove the same files.

Which files count towards the limits, and which may be evicted:

    entries, blobs                        count; evicted as `eviction` says
    headers, kernels, failed, slower      count; evicted by the time of their last use, unless a process uses them
    aside                                 count; evicted first
    quarantine, other facts, index        count; never evicted
    files that are not fxpool's           don't count; never evicted
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from fxpool import notices
from fxpool.codecache.store import contents, eviction, layout
from fxpool.codecache.store.blobs import BlobRef, check_directory, read_stored, write_error
from fxpool.codecache.store.bounds import Bounds
from fxpool.codecache.store.entry import Entry, decode_entry
from fxpool.codecache.store.eviction import KeptBlob, KeptEntry, OtherFiles, Plan, Size
from fxpool.codecache.store.index import EntryFacts, Index, IndexUnusableError, Part
from fxpool.codecache.store.pace import Pace, paced, release, unpaced
from fxpool.errors import StoreError

__all__ = ["Collected", "after_publication", "collect", "evicted"]

log = notices.logger(__name__)

REST = "rest"
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
_PREFIX = re.compile(r"[0-9a-f]{2}")


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


@dataclass
class _Scan:
    """The contents of a directory. `states` identifies each entry and blob by inode, size and times."""

    parts: list[Part] = field(default_factory=list)
    entries: list[KeptEntry] = field(default_factory=list)
    blobs: list[KeptBlob] = field(default_factory=list)
    others: list[OtherFiles] = field(default_factory=list)
    rest: Size = field(default_factory=Size)
    states: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)

    @property
    def size(self) -> Size:
        return eviction.sum_of(part.size for part in self.parts)


def after_publication(root: str, entry: Entry, bounds: Bounds) -> Collected | None:
    """Update the index after a publication; evict if the directory is over its limits.

    Returns None if no eviction was needed, or if another process does it. Raises OSError, StoreError.
    """
    if bounds.max_bytes is None and bounds.max_files is None:
        return None
    written = {
        f"{layout.ENTRIES}/{entry.key[:2]}",
        *(f"{layout.BLOBS}/{ref.digest[:2]}" for ref in entry.blobs.values()),
    }
    memory = Index(root)
    try:
        size = _refresh(root, memory, written)
    except IndexUnusableError as error:
        log.info("%s", error)
        return _collect_claimed(root, bounds, every=_REST_EVERY)
    if size is None or not size.over(bounds):
        return None
    return _collect_claimed(root, bounds)


def _refresh(root: str, memory: Index, written: Iterable[str]) -> Size | None:
    """Scan some parts of the directory again; return the total size, None if the index lacks some parts."""
    deadline = time.monotonic() + _PATIENCE
    looked = memory.look(written)
    known, present = looked.summary.parts, set(_part_names(root))
    now = time.time()
    again = {name for name in written if name in present}
    if REST in known and (known[REST][0].files < _REST_IS_SMALL or now - known[REST][1] > _REST_EVERY):
        again.add(REST)
    missing = sorted(present - known.keys() - again)
    facts = looked.entries
    if not missing and (others := present - again - {REST}):
        oldest = min(others, key=lambda name: known[name][1])
        again.add(oldest)
        facts = {**facts, **memory.look([oldest]).entries}
    scan = _Scan()
    for name in sorted(again):
        _scan_part(root, name, facts, scan)
    for name in missing:
        if time.monotonic() > deadline:
            break
        _scan_part(root, name, {}, scan)
    summary = memory.keep(scan.parts)
    if gone := summary.parts.keys() - present:
        memory.forget(gone)
    if present - summary.parts.keys():
        return None
    return eviction.sum_of(size for name, (size, _) in summary.parts.items() if name in present)


def collect(root: str, bounds: Bounds, *, dry_run: bool = False) -> Collected:
    """Evict down to the limits, even if another process is evicting.

    Raises UnsafeDirectoryError, StoreWriteError, OSError.
    """
    check_directory(root)
    if not os.path.isdir(root):
        return Collected()
    if dry_run:
        scan = _scan(root, keep=False)
        planned = _plan(scan, bounds, time.time())
        return Collected(
            entries=len(planned.entries),
            blobs=len(planned.blobs),
            others=sum(one.size.files for one in planned.others),
            freed=planned.freed,
            before=scan.size,
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
    memory = Index(root)
    if not memory.exists():
        return None
    try:
        summary = memory.look(()).summary
    except IndexUnusableError:
        return None
    return Size(summary.evicted_entries, summary.evicted_bytes)


# ---------------------------------------------------------------- one at a time


def _collect_claimed(root: str, bounds: Bounds, every: float | None = None) -> Collected | None:
    """Evict, or return None if another process does. With `every`, at most once in that many seconds."""
    now = _claim(root, _CLAIMED_FOR if every is None else every)
    if now is None:
        return None
    collected = _collect(root, bounds, now)
    if not collected.stuck and every is None:
        _release(root)
    return collected


def _claim(root: str, every: float) -> float | None:
    """Claim the directory; return the time by the clock of the file system, or None if a recent claim exists.

    Raises StoreWriteError.
    """
    path = os.path.join(root, contents.CLAIM)
    for _ in range(2):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            try:
                if abs(time.time() - os.lstat(path).st_mtime) < every:
                    return None
                os.unlink(path)  # its process died, or could not evict enough
            except FileNotFoundError:
                pass
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
        os.unlink(os.path.join(root, contents.CLAIM))


# ---------------------------------------------------------------- looking


def _part_names(root: str) -> list[str]:
    """Return the names of the parts that exist in a directory."""
    found = [REST]
    for kind in (layout.ENTRIES, layout.BLOBS):
        found += [f"{kind}/{name}" for name in layout.names(os.path.join(root, kind)) if _PREFIX.fullmatch(name)]
    return found


def _scan(root: str, *, keep: bool = True) -> _Scan:
    """Scan every part. Entries that are in the index are not read again; with `keep`, the index is updated."""
    memory = Index(root)
    known: dict[str, EntryFacts] = {}
    seen_before: set[str] = set()
    if keep or memory.exists():
        try:
            look = memory.look(pace=paced)
            known, seen_before = look.entries, set(look.summary.parts)
        except IndexUnusableError as error:
            log.info("%s", error)
            keep = False
    scan = _Scan()
    for name in _part_names(root):
        _scan_part(root, name, known, scan, paced)
    release(known)
    if keep:
        with contextlib.suppress(IndexUnusableError):
            memory.keep(scan.parts)
            memory.forget(seen_before - {part.name for part in scan.parts})
    return scan


def _scan_part(root: str, name: str, known: Mapping[str, EntryFacts], scan: _Scan, pace: Pace = unpaced) -> Part:
    """Scan one part of the directory and add it to `scan`."""
    seen = time.time()
    if name == REST:
        others, size = contents.others(root)
        scan.others += others
        scan.rest += size - eviction.sum_of(one.size for one in others)
        part = Part(name, size)
    elif name.startswith(layout.ENTRIES):
        part = _scan_entries(root, name, known, scan, pace)
    else:
        part = _scan_blobs(root, name, scan, pace)
    part = replace(part, seen=seen)
    scan.parts.append(part)
    return part


def _scan_entries(root: str, name: str, known: Mapping[str, EntryFacts], scan: _Scan, pace: Pace) -> Part:
    facts: dict[str, EntryFacts] = {}
    rest = Size(0, _blocks_of(os.path.join(root, name)))
    entries: list[KeptEntry] = []
    for key in pace(layout.names(os.path.join(root, name))):
        directory = os.path.join(root, name, key)
        # A key's directory is removed with its last entry, and most keys have one entry, so its size counts there.
        own = Size(0, _blocks_of(directory))
        for file in sorted(layout.names(directory)):
            path = f"{name}/{key}/{file}"
            status = _status(os.path.join(root, path))
            if status is None:
                continue
            size = Size(1, status.st_blocks * 512)
            if not (file.endswith(layout.ENTRY_SUFFIX) and stat.S_ISREG(status.st_mode)):
                rest += size
                continue
            state = _state(status)
            fact = known.get(path)
            if fact is None or fact.state != state:
                fact = _read_facts(os.path.join(root, path), state)
            facts[path] = fact
            scan.states[path] = state
            stem = file[: -len(layout.ENTRY_SUFFIX)]
            entries.append(KeptEntry(key, stem, size + own, status.st_mtime, fact.seconds, fact.blobs))
            own = Size()
        rest += own
    scan.entries += entries
    scan.rest += rest
    return Part(name, eviction.sum_of(one.size for one in entries) + rest, facts)


def _read_facts(path: str, state: tuple[int, int, int, int]) -> EntryFacts:
    try:
        entry = decode_entry(read_stored(path)[0])
    except (OSError, StoreError):  # damaged, of another version, or removed
        return EntryFacts(state)
    return EntryFacts(state, entry.metadata.compile_seconds, tuple(sorted({ref.name for ref in entry.blobs.values()})))


def _scan_blobs(root: str, name: str, scan: _Scan, pace: Pace) -> Part:
    rest = Size(0, _blocks_of(os.path.join(root, name)))
    blobs: list[KeptBlob] = []
    for file in pace(layout.names(os.path.join(root, name))):
        path = f"{name}/{file}"
        status = _status(os.path.join(root, path))
        if status is None:
            continue
        size = Size(1, status.st_blocks * 512)
        if BlobRef.from_name(file) is None or not stat.S_ISREG(status.st_mode):
            rest += size
            continue
        scan.states[path] = _state(status)
        blobs.append(KeptBlob(file, size, status.st_mtime))
    scan.blobs += blobs
    scan.rest += rest
    return Part(name, eviction.sum_of(one.size for one in blobs) + rest)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _blocks_of(directory: str) -> int:
    status = _status(directory)
    return status.st_blocks * 512 if status is not None else 0


def _state(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _plan(scan: _Scan, bounds: Bounds, now: float) -> Plan:
    return eviction.plan(scan.entries, scan.blobs, scan.others, scan.rest, bounds, now, paced)


# ---------------------------------------------------------------- removing


def _collect(root: str, bounds: Bounds, now: float) -> Collected:
    scan = _scan(root)
    before = scan.size
    removal = _Removal(root, scan)
    planned = _plan(scan, bounds, now)
    removal.entries(planned.entries)
    removal.blobs(planned.blobs)
    removal.others(planned.others)
    left, emptied = removal.parts_left()
    freed = removal.freed
    with contextlib.suppress(IndexUnusableError):
        memory = Index(root)
        memory.keep(left, entries_evicted=removal.counts[layout.ENTRIES], bytes_evicted=max(0, freed.bytes))
        memory.forget(emptied)
    if freed.files or removal.failed:
        log.info(
            "evicted %d entries, %d blobs and %d other files (%d bytes) of %s; %d could not be removed",
            *(removal.counts[kind] for kind in (layout.ENTRIES, layout.BLOBS, REST)),
            freed.bytes,
            root,
            removal.failed,
        )
    collected = Collected(
        entries=removal.counts[layout.ENTRIES],
        blobs=removal.counts[layout.BLOBS],
        others=removal.counts[REST],
        freed=freed,
        before=before,
        over=(before - freed - removal.vanished).over(bounds),
        stuck=planned.over or removal.busy or removal.failed > 0,
        failed=removal.failed,
    )
    release(planned.entries, planned.blobs, planned.others, left)
    removal.release()
    return collected


class _Removal:
    """Removes planned files one by one, unless they have changed since the scan."""

    def __init__(self, root: str, scan: _Scan) -> None:
        self._root = root
        self._scan = scan
        self._spared: set[str] = set()  # blobs of planned entries that changed and therefore stay
        self._gone: dict[str, Size] = {}  # removed path: its size
        self.counts = dict.fromkeys((layout.ENTRIES, layout.BLOBS, REST), 0)
        self.vanished = Size()
        self.failed = 0
        self.busy = False  # a header is in use

    @property
    def freed(self) -> Size:
        return eviction.sum_of(self._gone.values())

    def entries(self, entries: Iterable[KeptEntry]) -> None:
        for entry in paced(entries):
            path = f"{layout.ENTRIES}/{entry.key[:2]}/{entry.key}/{entry.name}{layout.ENTRY_SUFFIX}"
            if self._remove(path, entry.size, layout.ENTRIES):
                layout.remove_empty(os.path.dirname(os.path.join(self._root, path)))
            else:
                self._spared.update(entry.blobs or ())

    def blobs(self, blobs: Iterable[KeptBlob]) -> None:
        for blob in paced(blobs):
            if blob.name not in self._spared:
                self._remove(f"{layout.BLOBS}/{blob.name[:2]}/{blob.name}", blob.size, layout.BLOBS)

    def others(self, others: Iterable[OtherFiles]) -> None:
        for one in others:
            if contents.remove_other(self._root, one):
                self._gone[one.path] = one.size
                self.counts[REST] += one.size.files
            else:
                self.busy = True

    def _remove(self, path: str, size: Size, kind: str) -> bool:
        """Remove a file, unless it was used or replaced since the scan; return whether it is gone."""
        full = os.path.join(self._root, path)
        try:
            if _state(os.lstat(full)) != self._scan.states[path]:
                return False
            os.unlink(full)
        except (FileNotFoundError, NotADirectoryError):
            self._gone[path] = Size()
            self.vanished += size  # another process removed and counted it
            return True
        except OSError:
            self.failed += 1
            return False
        self._gone[path] = size
        self.counts[kind] += 1
        if len(self._gone) % _SIGN_EVERY == 0:
            with contextlib.suppress(OSError):
                os.utime(os.path.join(self._root, contents.CLAIM))
        return True

    def parts_left(self) -> tuple[list[Part], list[str]]:
        """Remove empty directories; return the parts that lost files, and the names of removed parts."""
        lost: dict[str, Size] = {}
        for path, size in paced(self._gone.items()):
            name = _part_of(path)
            lost[name] = lost.get(name, Size()) + size
        left: list[Part] = []
        emptied: list[str] = []
        for part in paced(self._scan.parts):
            size = part.size - lost.get(part.name, Size())
            if part.name != REST and not size.files and layout.remove_empty(os.path.join(self._root, part.name)):
                emptied.append(part.name)
                self._gone[part.name] = Size(0, size.bytes)
            elif part.name in lost:
                entries = {path: facts for path, facts in part.entries.items() if path not in self._gone}
                left.append(Part(part.name, size, entries, part.seen))
        return left, emptied

    def release(self) -> None:
        """Free the memory of the scan and of the removal, piece by piece."""
        scan = self._scan
        release(self._gone, scan.entries, scan.blobs, scan.others, scan.states)
        for part in paced(scan.parts):
            release(part.entries)
        release(scan.parts)


def _part_of(path: str) -> str:
    """Return the name of the part that contains a path, which is relative to the root."""
    kind, _, below = path.partition("/")
    return f"{kind}/{below[:2]}" if kind in (layout.ENTRIES, layout.BLOBS) else REST
