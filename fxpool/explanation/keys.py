"""Compares two keys: of entries, of graphs of this process, or of an entry and the nearest other entry.

Stores are imported inside functions: a process without a cache directory needs none.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fxpool import config
from fxpool.codecache.explain import misses, nearest
from fxpool.codecache.explain.nearest import Comparison, Side
from fxpool.codecache.store.entry import Entry
from fxpool.errors import NoEntryError

if TYPE_CHECKING:
    from fxpool.codecache.store.store import LocalStore

__all__ = ["compare", "entries", "missed"]

_RECORDS = "fxpool.lowering.artifact.miss_records"


def compare(a: Any, b: Any = None) -> Comparison:
    """Compare two keys, each given as a key or its start, an entry, or a record of ``fxpool.stats()["graphs"]``.

    Without `b`, compare the nearest other entry of the cache with `a`.

    Raises:
        NoEntryError: no entry matches a key, several match, or there is no other entry to compare with.
        TypeError: `a` or `b` is something else.
    """
    stored = entries()
    first = _side(a, stored)
    if b is not None:
        return nearest.compared(first, _side(b, stored))
    other = nearest.nearest(first, stored)
    if other is None:
        raise NoEntryError(first.key, "the cache has no other entry to compare it with")
    return nearest.compared(other, first, nearest.NEAREST)


def entries() -> list[Entry]:
    """Return the readable entries of the configured stores, oldest first. Raises UnsafeDirectoryError."""
    there = [one.entry for store in _stores() for one in store.scan() if one.entry is not None]
    return sorted(there, key=lambda entry: entry.metadata.created)


def missed() -> list[misses.Miss]:
    """Return the latest misses of this process, oldest first."""
    if _RECORDS not in sys.modules:  # nothing was compiled; do not import torch for this
        return []
    kept: list[misses.Miss] = importlib.import_module(_RECORDS).misses_so_far()
    return kept


def _side(subject: Any, stored: Sequence[Entry]) -> Side:
    if isinstance(subject, Entry):
        return Side.of(subject)
    key = subject.get("key", subject) if isinstance(subject, Mapping) else subject
    if key is None:
        raise NoEntryError(str(subject.get("label", "")), "the graph has no key; `fxpool.explain()` says why")
    if not isinstance(key, str):
        raise TypeError(f"{type(subject).__name__} is not a key, entry or record of fxpool.stats()['graphs']")
    starting = [entry for entry in stored if key and entry.key.startswith(key.lower())]
    matching = sorted({entry.key for entry in starting})
    if len(matching) > 1:
        raise NoEntryError(key, f"{len(matching)} keys start like this: {', '.join(one[:20] for one in matching[:8])}")
    if starting:
        return Side.of(starting[-1])
    for miss in reversed(missed()):
        if key and miss.side.key.startswith(key.lower()):
            return miss.side
    raise NoEntryError(key, "no entry has a key that starts like this")


def _stores() -> list[LocalStore]:
    """Return the configured stores that exist, without creating them."""
    from fxpool.codecache.store.store import LocalStore

    settings = config.current()
    stores = [LocalStore(str(settings.cache_dir))] if settings.cache_dir.is_dir() else []
    if settings.cache_base is not None and settings.cache_base.is_dir():
        from fxpool.codecache.store.base_store import BaseStore

        stores.append(BaseStore(str(settings.cache_base)))
    return stores
