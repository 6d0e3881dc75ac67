"""Measures the disk usage of a cache directory by kind of file; clears it, except for precompiled headers in use.

`parts` lists fxpool's files; all others are counted, and never removed. A header that a process is compiling or
including stays. Sizes are those of `du`: blocks, including those of directories; a file with several names counts once.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import filelock

from fxpool.codecache.store.blobs import TEMPORARY_PREFIX, check_directory, write_error
from fxpool.codecache.store.eviction import OtherFiles, Size
from fxpool.codecache.store.parts import BLOBS, CLAIM, ENTRIES, FACTS, FOREIGN, HEADERS, KINDS, PARTS

__all__ = [
    "BLOBS", "CLAIM", "ENTRIES", "FOREIGN", "HEADERS", "KINDS", "Cleared", "Share", "clear", "measure", "others",
    "remove_other",
]  # fmt: skip

_HEADERS = os.path.join("toolchain", "headers")
_BUILDING = "building-"
#: Seconds in which a compile that knows a header's name may still include it.
_LATELY = 3600.0


@dataclass
class Share:
    """The number of `files` of one kind, and the `bytes` that they and their directories take on the disk."""

    files: int = 0
    bytes: int = 0


@dataclass
class Cleared:
    """The result of `clear`: sizes of `removed` and `left` files by kind, and paths of headers `in_use` that stay."""

    removed: dict[str, Share] = field(default_factory=dict)
    in_use: list[str] = field(default_factory=list)
    left: dict[str, Share] = field(default_factory=dict)


def measure(root: str) -> dict[str, Share]:
    """Return the share of every kind. The root directory counts as host facts. Raises OSError."""
    shares = {kind: Share() for kind in KINDS}
    seen: set[tuple[int, int]] = set()
    with contextlib.suppress(FileNotFoundError):
        shares[FACTS].bytes += _blocks(os.lstat(root))
        for name in os.listdir(root):
            for path, status in _walk(os.path.join(root, name)):
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                share = shares[_kind(os.path.relpath(path, root))]
                share.bytes += _blocks(status)
                share.files += not stat.S_ISDIR(status.st_mode)
    return shares


def clear(root: str, *, everything: bool = False) -> Cleared:
    """Remove all of fxpool's files from a cache directory, except headers in use. Raises StoreError.

    Does not disturb concurrent publishers; their files stay. Releases all graphs from quarantine. `everything` also
    removes the text of headers that a worker may still include by name, and then the directory if it is empty.
    """
    check_directory(root)
    cleared = Cleared()
    try:
        before = measure(root)
        headers = os.path.join(root, _HEADERS)
        if not any(map(os.path.islink, (headers, os.path.dirname(headers)))):  # a link's target is not in `root`
            cleared.in_use = _clear_headers(headers, spare_text=not everything)
        names = [name for name in os.listdir(root) if name.startswith(TEMPORARY_PREFIX)]
        for name in [*PARTS, *names]:
            _remove(os.path.join(root, name), spared=headers)
        after = measure(root)
        if everything:
            with contextlib.suppress(OSError):  # the rest is in use or not fxpool's, or it is a mount point
                os.rmdir(root)
    except OSError as error:
        raise write_error(f"cannot clear {root}", error) from error
    for kind, share in before.items():
        rest = after[kind]
        cleared.removed[kind] = Share(max(0, share.files - rest.files), max(0, share.bytes - rest.bytes))
    cleared.left = after
    return cleared


def others(root: str) -> tuple[list[OtherFiles], Size]:
    """Return the files other than entries and blobs that may be evicted, and the size of all other files of fxpool.

    Headers that are being built, and files that disappear during the scan, are not listed.
    """
    found: list[OtherFiles] = []
    files = size = 0
    for name in _names(root):
        kind = _kind(name)
        if kind == FOREIGN or name == CLAIM:  # the claim exists only during an eviction
            continue
        within = _walk(os.path.join(root, name)) if kind not in (ENTRIES, BLOBS) else _itself(os.path.join(root, name))
        for path, status in within:
            is_file = not stat.S_ISDIR(status.st_mode)
            files += is_file
            size += _blocks(status)
            if is_file and name in PARTS and PARTS[name].evicted:
                used = 0.0 if PARTS[name].never_served else status.st_mtime
                found.append(OtherFiles(os.path.relpath(path, root), Size(1, _blocks(status)), used))
    found += _headers(root)
    return found, Size(files, size + sum(_blocks(status) for _, status in _itself(root)))


def _headers(root: str) -> Iterator[OtherFiles]:
    directory = os.path.join(root, _HEADERS)
    if any(map(os.path.islink, (directory, os.path.dirname(directory)))):  # a link's target is not in `root`
        return
    for stem, group in _groups(_names(directory)).items():
        if stem.startswith(_BUILDING):
            continue
        statuses = [one for name in group for one in _itself(os.path.join(directory, name))]
        # Lock files stay, and so do the text files that include recently used headers.
        sizes = [_blocks(one) for path, one in statuses if path.endswith((".gch", ".json"))]
        used = max((one.st_mtime for path, one in statuses if path.endswith(".json")), default=0.0)
        if sizes:
            yield OtherFiles(os.path.join(_HEADERS, stem), Size(len(sizes), sum(sizes)), used)


def remove_other(root: str, one: OtherFiles) -> bool:
    """Remove files listed by `others`; return whether they are gone. A header in use, or used since then, stays."""
    path = os.path.join(root, one.path)
    if os.path.dirname(one.path) == _HEADERS:
        status = dict(_itself(path + ".json")).get(path + ".json")
        if status is not None and status.st_mtime != one.used:
            return False
        try:
            return not _clear_headers(os.path.join(root, _HEADERS), only=os.path.basename(path))
        except OSError:
            return False
    try:
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _itself(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield a path with its status, or nothing if the path is missing."""
    with contextlib.suppress(OSError):
        yield path, os.lstat(path)


def _kind(relative: str) -> str:
    top = relative.split(os.sep, 1)[0]
    if relative == _HEADERS or relative.startswith(_HEADERS + os.sep):
        return HEADERS
    if top in PARTS:
        return PARTS[top].kind
    return FACTS if top.startswith(TEMPORARY_PREFIX) else FOREIGN


def _blocks(status: os.stat_result) -> int:
    return status.st_blocks * 512


def _walk(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield `path` and all paths below it with their status. Doesn't follow links; skips files that disappear."""
    try:
        status = os.lstat(path)
        names = os.listdir(path) if stat.S_ISDIR(status.st_mode) else []
    except FileNotFoundError:
        return
    yield path, status
    for name in names:
        yield from _walk(os.path.join(path, name))


def _remove(path: str, spared: str) -> None:
    """Remove a tree except for `spared`; parts that are already gone are skipped. Raises OSError."""
    if path == spared and os.path.isdir(path):
        with contextlib.suppress(OSError):
            os.rmdir(path)  # succeeds if it is empty
        return
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
        for name in os.listdir(path):
            _remove(os.path.join(path, name), spared)
    except FileNotFoundError:
        return
    # Fails if `spared` is in it, or if another process has published into it.
    with contextlib.suppress(OSError):
        os.rmdir(path)


def _groups(names: Iterable[str]) -> dict[str, list[str]]:
    """Group the names of files by the stem of their precompiled header."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name if name.startswith(_BUILDING) else name.split(".")[0], []).append(name)
    return groups


def _clear_headers(directory: str, only: str | None = None, *, spare_text: bool = True) -> list[str]:
    """Remove precompiled headers that no process compiles or includes; return the paths of those that stay.

    With `only`, remove just the header of that stem.

    With `spare_text`, if a header was used within `_LATELY`, the one-line text file that includes it stays: a worker
    may already have its name, and then uses the header as text.
    """
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    directory = os.path.realpath(directory)
    running, now = _command_lines(), time.time()
    kept = []
    for stem, group in _groups(names).items():
        if only is not None and stem != only:
            continue
        path = os.path.join(directory, stem)
        with contextlib.ExitStack() as stack:
            used = any(path in line for line in running)
            if not used and f"{stem}.lock" in group:
                try:
                    stack.enter_context(filelock.FileLock(f"{path}.lock", timeout=0, mode=0o600))
                except filelock.Timeout:
                    used = True
            if used:
                kept.append(path)
                continue
            try:
                lately = now - os.stat(f"{path}.json").st_mtime < _LATELY
            except OSError:
                lately = False
            for name in sorted(group, key=lambda name: name.endswith(".lock")):
                if not (spare_text and lately and name.endswith(".h")):
                    _remove(os.path.join(directory, name), spared="")
    return kept


def _command_lines() -> list[str]:
    """Return the command lines of all processes that this one may read."""
    lines = []
    for number in filter(str.isdigit, _names("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{number}/cmdline", "rb") as file:
            lines.append(os.fsdecode(file.read()))
    return lines


def _names(directory: str) -> Iterable[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
