"""Entries that are left to upload when a process ends, for the next process that uses the directory.

    <root>/pending/<key>-<name of the entry>        an empty file

A process may end before its last entries are uploaded, or while the remote is down. It marks each such entry by an
empty file; the entry itself is in the store.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from fxpool import directories
from fxpool.codecache.store.layout import is_hex_digest

__all__ = ["DIRECTORY", "MOST", "leave", "listed", "remove"]

DIRECTORY = "pending"
#: So many marks a directory has at most.
MOST = 1000


def leave(root: str, entries: Iterable[tuple[str, str]]) -> int:
    """Mark entries (key, name) of the store at `root`; return how many are marked. Never raises.

    A process that ends waits for it: no mark is synced to the disk.
    """
    directory = os.path.join(root, DIRECTORY)
    marked = 0
    try:
        directories.make_private(directory)
        room = MOST - len(_names(root))
        for key, name in entries:
            if marked >= room:
                break
            path = os.path.join(directory, f"{key}-{name}")
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            marked += 1
    except OSError:
        pass
    return marked


def listed(root: str) -> list[tuple[str, str]]:
    """Return (key, name) of every marked entry."""
    pairs = [name.partition("-") for name in _names(root)]
    return [(key, name) for key, _, name in pairs if is_hex_digest(key) and is_hex_digest(name)][:MOST]


def remove(root: str, key: str, name: str) -> None:
    """Take a mark away, if there is one. Never raises."""
    try:
        os.unlink(os.path.join(root, DIRECTORY, f"{key}-{name}"))
    except OSError:
        pass


def _names(root: str) -> list[str]:
    try:
        return sorted(os.listdir(os.path.join(root, DIRECTORY)))
    except OSError:
        return []
