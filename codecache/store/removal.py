"""Removes files of a cache directory: all of fxpool's, or precompiled headers and directories that are not in use.

`layout` lists fxpool's files; all others are counted, and never removed. A header that a process is compiling or
including stays, and so does a directory that a process holds (`held_directories`).
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field

import filelock

from fxpool import temporary
from fxpool.codecache.store import catalogue, held_directories, layout
from fxpool.codecache.store.blobs import check_directory, write_error
from fxpool.codecache.store.catalogue import Size, StoredFile
from fxpool.codecache.store.layout import HEADERS_DIRECTORY, remove_tree

__all__ = ["Cleared", "clear", "remove_group"]

#: Seconds in which a compile that knows a header's name may still include it.
_LATELY = 3600.0


@dataclass
class Cleared:
    """The result of `clear`: sizes of `removed` and `left` files by kind, and paths of headers
    and directories `in_use` that stay."""

    removed: dict[str, Size] = field(default_factory=dict)
    in_use: list[str] = field(default_factory=list)
    left: dict[str, Size] = field(default_factory=dict)


def clear(root: str, *, everything: bool = False) -> Cleared:
    """Remove all of fxpool's files from a cache directory, except headers and directories in use. Raises StoreError.

    Does not disturb concurrent publishers; their files stay. Releases all graphs from quarantine. `everything` also
    removes the text of headers that a worker may still include by name, and then the directory if it is empty.
    """
    check_directory(root)
    cleared = Cleared()
    try:
        before = catalogue.measure(root)
        headers = os.path.join(root, HEADERS_DIRECTORY)
        if not any(map(os.path.islink, (headers, os.path.dirname(headers)))):  # a link's target is not in `root`
            cleared.in_use = _clear_headers(headers, spare_text=not everything)
        for name in held_directories.names(root):
            if not held_directories.remove(root, name):
                cleared.in_use.append(os.path.join(root, layout.BUILT_DIRECTORY, name))
        temporaries = [name for name in os.listdir(root) if name.startswith(layout.TEMPORARY_PREFIX)]
        for name in [*layout.PARTS, *temporaries]:
            if name != layout.BUILT_DIRECTORY:
                remove_tree(os.path.join(root, name), spared=headers)
        temporary.sweep(os.path.join(root, layout.BUILT_DIRECTORY))
        layout.remove_empty(os.path.join(root, layout.BUILT_DIRECTORY))
        cleared.left = catalogue.measure(root)
        if everything:
            layout.remove_empty(root)  # or the rest is in use or not fxpool's, or it is a mount point
    except OSError as error:
        raise write_error(f"cannot clear {root}", error) from error
    for kind, size in before.items():
        removed = size - cleared.left[kind]
        cleared.removed[kind] = Size(max(0, removed.files), max(0, removed.bytes))
    return cleared


def remove_group(root: str, header: StoredFile) -> bool:
    """Remove a precompiled header or a directory; return whether it is gone.

    If it is in use, or was used since it was listed, it stays.
    """
    if os.path.dirname(header.path) == layout.BUILT_DIRECTORY:
        return held_directories.remove(root, header.name, header.used)
    path = os.path.join(root, header.path)
    try:
        if os.path.exists(f"{path}.json") and os.stat(f"{path}.json").st_mtime != header.used:
            return False
        return not _clear_headers(os.path.dirname(path), only=header.name)
    except OSError:
        return False


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
    spared = []
    for stem, group in catalogue.header_groups(names).items():
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
                spared.append(path)
                continue
            try:
                lately = now - os.stat(f"{path}.json").st_mtime < _LATELY
            except OSError:
                lately = False
            for name in sorted(group, key=lambda name: name.endswith(".lock")):
                if not (spare_text and lately and name.endswith(".h")):
                    remove_tree(os.path.join(directory, name))
    return spared


def _command_lines() -> list[str]:
    """Return the command lines of all processes that this one may read."""
    lines = []
    for number in filter(str.isdigit, layout.names("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{number}/cmdline", "rb") as file:
            lines.append(os.fsdecode(file.read()))
    return lines
