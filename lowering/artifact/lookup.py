"""Looks up a captured graph in the stores: the entry that may serve it, or the reason for the miss.

Candidates under one key differ in their guards. A candidate whose guards do not hold for this call's sizes counts as a
guard miss; a damaged or incomplete entry, or one whose effects cannot be replayed, counts as absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from fxpool import counters, notices
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import CorruptEntryError, StoreError
from fxpool.lowering.artifact import effects, saved
from fxpool.lowering.artifact.content import content_of
from fxpool.lowering.artifact.entry_parts import Parts, Reference, parts_of_entry
from fxpool.lowering.artifact.load import GuardsDoNotHold
from fxpool.lowering.core import switched_off
from fxpool.lowering.request.captured import Captured
from fxpool.lowering.request.compile_request import AOT, PACKAGE, CompileRequest
from fxpool.torch_compat.dynamo import process_groups, torch_counters

log = notices.logger(__name__)

T = TypeVar("T")


def serve(
    captured: Captured,
    stores: Sequence[LocalStore],
    load: Callable[[Parts], T],
    *,
    misses: bool = True,
    elsewhere: Callable[[], tuple[LocalStore, Entry] | None] | None = None,
) -> T | None:
    """Return the loaded graph of the first entry that fits this call; None is a miss. Counts the hit or miss.

    The `stores` are searched in order. `elsewhere` is called if they have no such entry; it returns an entry that it
    has written to one of them. With `misses` false, a miss is not counted, as the graph is looked up in another form,
    too.
    """
    if captured.key is None or not stores:
        return None
    values = captured.values()
    damaged = _damaged(stores)
    tried: list[tuple[LocalStore, Entry]] = []
    for store, entry in _candidates(captured, stores):
        tried.append((store, entry))
        if not effects.guards_hold(entry.guards, values):
            continue
        loaded = _hit(captured, entry, store, load)
        if loaded is not None:
            return loaded
        if store.root == captured.request.store:  # the worker looks into this store only
            captured.reject(entry.name)
    if elsewhere is not None and (found := elsewhere()) is not None:
        store, entry = found
        loaded = _hit(captured, entry, store, load)
        if loaded is not None:
            return loaded
    if misses:
        counters.count("guard_misses" if tried else "misses")
        _tell_torch(captured, "guard_miss" if tried else "miss")
        from fxpool.lowering.artifact import miss_records  # not needed for a hit

        miss_records.remember(captured, tried, stores, _damaged(stores) > damaged)
    return None


def _hit(captured: Captured, entry: Entry, store: LocalStore, load: Callable[[Parts], T]) -> T | None:
    """Load an entry whose guards hold, and count the hit; None if it is damaged, incomplete or does not fit."""
    if content_of(entry).effects.restart:  # loading it raises Dynamo's restart
        counters.count("hits")
        counters.count("restarts")
        _used(captured, entry, store)
    loaded = load_entry(entry, store, load)
    if loaded is None:
        return None
    counters.count("hits")
    _tell_torch(captured, "hit")
    counters.add_seconds_saved(entry.metadata.compile_seconds)
    process_groups.extend_timeouts(entry.metadata.compile_seconds)
    _used(captured, entry, store)
    return loaded


def _used(captured: Captured, entry: Entry, store: LocalStore) -> None:
    """Mark an entry as used, for eviction and for ``save_cache_artifacts()``."""
    store.mark_used(entry)
    if captured.request.level != PACKAGE:
        saved.record(entry, store)


def _damaged(stores: Sequence[LocalStore]) -> int:
    """Return the number of damaged entries that these stores have met so far."""
    return sum(store.counters()["corrupt"] for store in stores)


def _tell_torch(captured: Captured, state: str) -> None:
    if captured.request.level == PACKAGE:  # torch has no cache of packages
        return
    key = captured.key.digest if captured.key is not None else ""
    torch_counters.looked_up(state, before_autograd=captured.request.level == AOT, inputs=captured.fakes, key=key)


def _candidates(captured: Captured, stores: Sequence[LocalStore]) -> Iterator[tuple[LocalStore, Entry]]:
    for store in stores:
        for key in captured.all_keys():
            for entry in store.entries(key.digest):
                yield store, entry


def load_entry(entry: Entry, store: LocalStore, load: Callable[[Parts], T]) -> T | None:
    """Load one entry; None if it is damaged, incomplete or does not fit this call."""
    if not store.complete(entry):
        return None
    try:
        return load(parts_of_entry(entry, store))
    except GuardsDoNotHold:
        return None
    except (CorruptEntryError, KeyError, TypeError) as error:
        counters.count("corrupt_entries")
        log.warning("entry %s of the cache could not be loaded; recompiling: %s", entry.key[:12], error)
        return None


def published(reference: Reference, store: LocalStore) -> Entry | None:
    """Return the entry that a worker refers to; None if it is gone or damaged.

    An entry that was compiled for a client with another store is copied into this one.
    """
    entry = _published(reference, store)
    if entry is not None and content_of(entry).level != PACKAGE:
        saved.record(entry, store)
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
        fits = entry.name not in request.rejected_entries and effects.guards_hold(entry.guards, request.values)
        if fits and store.complete(entry):
            store.mark_used(entry)  # the client loads it next: it must not be evicted before
            return entry
    return None
