"""A captured graph against the store: the entry that may be served, or why there is none.

Candidates under a key differ by their guards. One whose guards do not hold for this call's sizes is
a guard miss; one that is damaged, incomplete or can't be replayed counts as absent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from fxpool import statistics
from fxpool.codecache.entry import Entry
from fxpool.codecache.store import LocalStore
from fxpool.errors import CorruptEntryError
from fxpool.lowering import effects
from fxpool.lowering.artifact import Parts, parts_of_entry
from fxpool.lowering.capture import Captured
from fxpool.lowering.load import GuardsDoNotHold

log = logging.getLogger("fxpool.lowering")

T = TypeVar("T")


def serve(captured: Captured, store: LocalStore | None, load: Callable[[Parts], T]) -> T | None:
    """The loaded graph from the first entry that fits this call; None is a miss. Counts what it was."""
    if captured.key is None or store is None:
        return None
    values = captured.values()
    found = store.entries(captured.key.digest)
    for entry in found:
        if not effects.guards_hold(entry.guards, values):
            continue
        if entry.effects.get("restart"):  # loading it raises Dynamo's restart
            statistics.count("hits")
            statistics.count("restarts")
        loaded = load_entry(entry, store, load)
        if loaded is not None:
            statistics.count("hits")
            statistics.add_seconds_saved(entry.metadata.compile_seconds)
            store.mark_used(entry)
            return loaded
    statistics.count("guard_misses" if found else "misses")
    return None


def load_entry(entry: Entry, store: LocalStore, load: Callable[[Parts], T]) -> T | None:
    """Load one entry; None if it is damaged, incomplete or not for this call."""
    if not store.complete(entry):
        return None
    try:
        return load(parts_of_entry(entry, store))
    except GuardsDoNotHold:
        return None
    except (CorruptEntryError, KeyError, TypeError) as error:
        statistics.count("corrupt_entries")
        log.warning("entry %s of the cache is of no use and is compiled anew: %s", entry.key[:12], error)
        return None


def published(captured: Captured, store: LocalStore, name: str) -> Entry | None:
    """The entry a worker said it published."""
    assert captured.key is not None
    return next((entry for entry in store.entries(captured.key.digest) if entry.name == name), None)
