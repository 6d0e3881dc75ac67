"""Looks up a captured graph in the stores: yields the entries that may serve it, and records the hit or the miss.

Candidates under one key differ in their guards. A candidate whose guards do not hold for this call's sizes counts as a
guard miss; a damaged or incomplete entry, or one whose effects cannot be replayed, counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from fxpool import counters
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import StoreError
from fxpool.lowering.artifact import side_effects, torch_artifacts
from fxpool.lowering.artifact.entry_content import content_of
from fxpool.lowering.artifact.entry_parts import Reference
from fxpool.lowering.core import switched_off
from fxpool.lowering.request.captured_graph import Captured
from fxpool.lowering.request.compile_request import AOT, PACKAGE, CompileRequest
from fxpool.torch_compat.dynamo import process_groups, torch_counters


class Search:
    """One lookup of a captured graph, which has a key, in `stores`, in order."""

    def __init__(self, captured: Captured, stores: Sequence[LocalStore]) -> None:
        self._captured, self._stores = captured, stores
        self._damaged = _damaged(stores)
        self._tried: list[tuple[LocalStore, Entry]] = []

    def candidates(self) -> Iterator[tuple[Entry, LocalStore]]:
        """Yield entries that fit this call, with their stores. To go on means that the last one could not be loaded."""
        values = self._captured.values()
        for store, entry in _entries(self._captured, self._stores):
            self._tried.append((store, entry))
            if not side_effects.guards_hold(entry.guards, values):
                continue
            yield entry, store
            if store.root == self._captured.request.store:  # the worker looks into this store only
                self._captured.reject(entry.name)

    def count_miss(self) -> None:
        """Count and record the miss, after all candidates."""
        counters.count("guard_misses" if self._tried else "misses")
        _tell_torch(self._captured, "guard_miss" if self._tried else "miss")
        from fxpool.lowering.artifact import miss_records  # not needed for a hit

        newly_damaged = _damaged(self._stores) > self._damaged
        miss_records.remember(self._captured, self._tried, self._stores, newly_damaged)


def count_restart(captured: Captured, entry: Entry, store: LocalStore) -> None:
    """Count the hit of an entry without code: it makes Dynamo trace again."""
    counters.count("hits")
    counters.count("restarts")
    _used(captured, entry, store)


def count_hit(captured: Captured, entry: Entry, store: LocalStore) -> None:
    """Count the hit of an entry that was loaded."""
    counters.count("hits")
    _tell_torch(captured, "hit")
    counters.add_seconds("seconds_saved", entry.metadata.compile_seconds)
    process_groups.extend_timeouts(entry.metadata.compile_seconds)
    _used(captured, entry, store)


def _used(captured: Captured, entry: Entry, store: LocalStore) -> None:
    """Mark an entry as used, for eviction and for ``save_cache_artifacts()``."""
    store.mark_used(entry)
    if captured.request.level != PACKAGE and not captured.saved_by_torch:
        torch_artifacts.record(entry, store)


def _damaged(stores: Sequence[LocalStore]) -> int:
    """Return the number of damaged entries that these stores have met so far."""
    return sum(store.counters()["corrupt"] for store in stores)


def _tell_torch(captured: Captured, state: str) -> None:
    if captured.request.level == PACKAGE:  # torch has no cache of packages
        return
    key = captured.key.digest if captured.key is not None else ""
    torch_counters.looked_up(state, before_autograd=captured.request.level == AOT, inputs=captured.fakes, key=key)


def _entries(captured: Captured, stores: Sequence[LocalStore]) -> Iterator[tuple[LocalStore, Entry]]:
    for store in stores:
        for key in captured.all_keys():
            for entry in store.entries(key.digest):
                yield store, entry


def published(reference: Reference, store: LocalStore, *, saved_by_torch: bool = False) -> Entry | None:
    """Return the entry that a worker refers to; None if it is gone or damaged.

    An entry that was compiled for a client with another store is copied into this one. `saved_by_torch` is as in
    `Captured`.
    """
    entry = _published(reference, store)
    if reference.full:
        store.report_full()
    if entry is not None and content_of(entry).level != PACKAGE and not saved_by_torch:
        torch_artifacts.record(entry, store)
    return entry


def _published(reference: Reference, store: LocalStore) -> Entry | None:
    if reference.store == store.root:
        entry = _named(store, reference)
        return entry if entry is not None and store.complete(entry) else None
    try:
        theirs = LocalStore(reference.store)
        entry = _named(theirs, reference)
        if entry is None:
            return None
        blobs = {role: theirs.read_blob(ref) for role, ref in entry.blobs.items()}
        if any(content is None for content in blobs.values()):
            return None
        return store.publish(
            msgspec.structs.replace(entry, blobs={}), {role: blob for role, blob in blobs.items() if blob is not None}
        )
    except StoreError as error:
        switched_off.say_not_kept(error)
        return None


def _named(store: LocalStore, reference: Reference) -> Entry | None:
    return next((entry for entry in store.entries(reference.key) if entry.name == reference.name), None)


def present(request: CompileRequest) -> Entry | None:
    """Return an entry that fits a request and was written since the client's lookup, or None."""
    if request.key is None or request.store is None:
        return None
    try:
        store = LocalStore(request.store)
    except StoreError:
        return None
    keys = [key for key in (request.key, request.host_key) if key is not None]
    for entry in (entry for key in keys for entry in store.entries(key.digest)):
        fits = entry.name not in request.rejected_entries and side_effects.guards_hold(entry.guards, request.values)
        if fits and store.complete(entry):
            store.mark_used(entry)  # the client loads it next: it must not be evicted before
            return entry
    return None
