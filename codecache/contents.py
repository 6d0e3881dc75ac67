"""What lies in a cache directory, by kind, with what it takes on the disk; and the removal of all of it.

    entries, blobs                           see `store.py`
    toolchain/headers                        precompiled headers, 150 MB each
    toolchain/..., slower, failed            what is known of compilers, CPUs and GPUs of hosts; of stages, of levels
    quarantine                               graphs that killed workers, with the end of their workers' output
    aside                                    what did not verify

What is none of that is not fxpool's: it is counted, and left alone. A header that somebody compiles, or includes now,
stays. Sizes are those of `du`: blocks, of directories too, and of files with several names once.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import filelock

from fxpool.codecache.blobs import TEMPORARY_PREFIX, check_directory, write_error

__all__ = ["FOREIGN", "HEADERS", "KINDS", "Cleared", "Share", "clear", "measure"]

ENTRIES, BLOBS, HEADERS = "entries", "blobs", "precompiled headers"
FACTS, QUARANTINE, ASIDE, FOREIGN = "host facts", "quarantine", "set aside", "not fxpool's"
#: In the order in which they are told.
KINDS = (ENTRIES, BLOBS, HEADERS, FACTS, QUARANTINE, ASIDE, FOREIGN)

_TOP = {
    "entries": ENTRIES,
    "slower": FACTS,
    "failed": FACTS,
    "blobs": BLOBS,
    "toolchain": FACTS,
    "quarantine": QUARANTINE,
    "aside": ASIDE,
    ".swept": FACTS,
}
_HEADERS = os.path.join("toolchain", "headers")
# Entries first, so that a reader does not see an entry whose blobs went before it for longer than need be.
_ORDER = ("entries", "blobs", "aside", "quarantine", "slower", "failed", "toolchain", ".swept")
_BUILDING = "building-"
#: Seconds in which a compile that was told of a header may yet include it.
_LATELY = 3600.0


@dataclass
class Share:
    """What is of one kind: how many `files`, and the `bytes` of disk they take with their directories."""

    files: int = 0
    bytes: int = 0


@dataclass
class Cleared:
    """What a `clear` removed, by kind; headers `in_use` that stay; what is `left` in all, by kind."""

    removed: dict[str, Share] = field(default_factory=dict)
    in_use: list[str] = field(default_factory=list)
    left: dict[str, Share] = field(default_factory=dict)


def measure(root: str) -> dict[str, Share]:
    """Every kind with what there is of it; the directory itself counts as a host's facts. Raises OSError."""
    found = {kind: Share() for kind in KINDS}
    seen: set[tuple[int, int]] = set()
    with contextlib.suppress(FileNotFoundError):
        found[FACTS].bytes += _blocks(os.lstat(root))
        for name in os.listdir(root):
            for path, status in _walk(os.path.join(root, name)):
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                share = found[_kind(os.path.relpath(path, root))]
                share.bytes += _blocks(status)
                share.files += not stat.S_ISDIR(status.st_mode)
    return found


def clear(root: str) -> Cleared:
    """Remove all that is fxpool's from a cache directory, but for headers in use. Raises StoreError.

    Publishers that run meanwhile are not disturbed; what they write is there afterwards. Graphs are let out of
    quarantine.
    """
    check_directory(root)
    cleared = Cleared()
    try:
        before = measure(root)
        headers = os.path.join(root, _HEADERS)
        if not any(map(os.path.islink, (headers, os.path.dirname(headers)))):  # what a link leads to is not in here
            cleared.in_use = _clear_headers(headers)
        names = [name for name in os.listdir(root) if name.startswith(TEMPORARY_PREFIX)]
        for name in [*_ORDER, *names]:
            _remove(os.path.join(root, name), spared=headers)
        after = measure(root)
    except OSError as error:
        raise write_error(f"can't clear {root}", error) from error
    for kind, share in before.items():
        rest = after[kind]
        cleared.removed[kind] = Share(max(0, share.files - rest.files), max(0, share.bytes - rest.bytes))
    cleared.left = after
    return cleared


def _kind(relative: str) -> str:
    top = relative.split(os.sep, 1)[0]
    if relative == _HEADERS or relative.startswith(_HEADERS + os.sep):
        return HEADERS
    return _TOP.get(top, FACTS if top.startswith(TEMPORARY_PREFIX) else FOREIGN)


def _blocks(status: os.stat_result) -> int:
    return status.st_blocks * 512


def _walk(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """`path` and all below it, links not followed; what vanishes meanwhile is left out."""
    try:
        status = os.lstat(path)
        names = os.listdir(path) if stat.S_ISDIR(status.st_mode) else []
    except FileNotFoundError:
        return
    yield path, status
    for name in names:
        yield from _walk(os.path.join(path, name))


def _remove(path: str, spared: str) -> None:
    """Remove a tree as far as it stands still, without `spared`. Raises OSError."""
    if path == spared and os.path.isdir(path):
        with contextlib.suppress(OSError):
            os.rmdir(path)  # it goes if nothing is left in it
        return
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
        for name in os.listdir(path):
            _remove(os.path.join(path, name), spared)
    except FileNotFoundError:
        return
    # Published into meanwhile, or spared: both are fine.
    with contextlib.suppress(OSError):
        os.rmdir(path)


def _clear_headers(directory: str) -> list[str]:
    """Remove precompiled headers that nobody compiles or includes; paths of those that stay.

    Of one that was used lately the line of text stays which includes it: a worker may have been told of it, and takes
    it as text then.
    """
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    directory = os.path.realpath(directory)
    running, now = _command_lines(), time.time()
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name if name.startswith(_BUILDING) else name.split(".")[0], []).append(name)
    kept = []
    for stem, group in groups.items():
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
                if not (lately and name.endswith(".h")):
                    _remove(os.path.join(directory, name), spared="")
    return kept


def _command_lines() -> list[str]:
    """Of all processes that can be looked at."""
    found = []
    for number in filter(str.isdigit, _names("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{number}/cmdline", "rb") as file:
            found.append(os.fsdecode(file.read()))
    return found


def _names(directory: str) -> Iterable[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
