"""Entries that are left to upload when a process ends, for the next process that uses the directory.

A process may end before its last entries are uploaded, or while the remote is down. It marks each such entry by an
empty record (`codecache.store.small_records`); the entry itself is in the store.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable

from fxpool.codecache.store.small_records import Records
from fxpool.errors import StoreError

__all__ = ["MOST", "leave", "listed", "remove"]

#: So many marks a directory has at most.
MOST = 1000

# A process that ends waits for its marks, so they are not synced to the disk.
_marks: Records[None] = Records("pending", lambda mark: b"", lambda content, written: None, synced=False)


def leave(root: str, entries: Iterable[tuple[str, str]]) -> int:
    """Mark entries (key, name) of the store at `root`; return how many are marked. Never raises."""
    marked = 0
    with contextlib.suppress(StoreError):
        for key, name in itertools.islice(entries, max(0, MOST - len(_marks.keys(root)))):
            _marks.add(root, f"{key}-{name}", None)
            marked += 1
    return marked


def listed(root: str) -> list[tuple[str, str]]:
    """Return (key, name) of every marked entry."""
    pairs = [mark.partition("-") for mark in _marks.keys(root)]
    return [(key, name) for key, _, name in pairs if name][:MOST]


def remove(root: str, key: str, name: str) -> None:
    """Remove a mark, if it exists. Never raises."""
    with contextlib.suppress(OSError):
        _marks.remove(root, f"{key}-{name}")
