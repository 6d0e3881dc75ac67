"""Saves entries with `torch.compiler.save_cache_artifacts()`, and restores them with `load_cache_artifacts()`.

Each entry that this process published or was served is recorded by reference. Its bytes are read when the program
saves: a bundle of the entry and its blobs (`codecache.bundle.bundle`). Loading writes the bundle into the current cache
directory, where the next lookup finds it. Torch trusts the bytes that a program loads, and so does this module; it
checks them for damage only.
"""

from __future__ import annotations

import dataclasses

from fxpool import counters, notices
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import FxpoolError, StoreError
from fxpool.lowering.core.runtime import runtime
from fxpool.torch_compat.inductor import cache_artifacts

__all__ = ["read", "record", "restore"]

log = notices.logger(__name__)


@dataclasses.dataclass(frozen=True)
class _Recorded:
    """A reference to an entry: its store, key and name."""

    root: str
    key: str
    name: str
    store: LocalStore = dataclasses.field(compare=False, repr=False)


def record(entry: Entry, store: LocalStore) -> None:
    """Include an entry in the program's next save; count it if that fails. Takes microseconds, never raises."""
    recorded = _Recorded(store.root, entry.key, entry.name, store)
    if not (cache_artifacts.register(read, restore) and cache_artifacts.record(entry.key, recorded)):
        counters.count("bypasses", "artifact_not_saved")


def read(recorded: _Recorded) -> bytes:
    """Return an entry as a bundle; empty and counted if the entry is gone or damaged. Never raises."""
    from fxpool.codecache.bundle import bundle  # only a program that saves needs it

    try:
        entries = recorded.store.entries(recorded.key)
        entry = next((entry for entry in entries if entry.name == recorded.name), None)
        if entry is not None:
            return bundle.entry_as_bundle(entry, recorded.store)
        why: object = f"the entry {recorded.key[:12]} is no longer in {recorded.root}"
    except (StoreError, OSError) as error:
        why = error
    counters.count("bypasses", "artifact_not_saved")
    log.warning("save_cache_artifacts() leaves out a graph: %s", why)
    return b""


def restore(key: str, data: bytes) -> None:
    """Write the result of `read` into the cache directory; a failure is counted and warned of. Never raises."""
    from fxpool.codecache.bundle import bundle  # only a program that loads needs it

    if not data:
        return
    try:
        store = runtime.store()
        if store is not None:  # without a store, the reason has been counted and warned of already
            bundle.restore_bytes(data, f"the artifact {key[:12]}", store)
    except (FxpoolError, OSError) as error:
        counters.count("bypasses", "artifact_not_loaded")
        notices.warn(f"load_cache_artifacts() could not add a graph to the cache: {error}")
