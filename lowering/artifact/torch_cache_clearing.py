"""Removes entries when a program clears torch's caches on disk.

    FxGraphCache.clear()       removes every entry, as torch's own cache is empty, too
    AOTAutogradCache.clear()   keeps the entries of graphs after AOTAutograd

As with torch's caches, this affects all processes that use the current cache directory (inside ``fresh_cache()``, its
temporary directory). A cache base is read-only and is not cleared; this process stops serving from it. Facts about the
host's tool chain are kept.
"""

from __future__ import annotations

from fxpool import notices
from fxpool.codecache.store.catalogue import StoredEntry
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import CorruptEntryError, StoreError
from fxpool.lowering.artifact.entry_content import content_of
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.request.compile_request import FX

__all__ = ["cleared"]

log = notices.logger(__name__)


def cleared(cache: str) -> None:
    """Remove entries after the program has cleared one of torch's caches; `cache` is the name of its class."""
    runtime.leave_base()
    store = runtime.store()
    if store is None:
        return
    try:
        if cache == "FxGraphCache":
            store.clear()
        else:
            _clear_before_autograd(store)
    except StoreError as error:
        notices.warn(f"{cache}.clear() could not clear fxpool's cache, remaining entries are still served: {error}")
    else:
        log.info("%s.clear(): removed entries of %s", cache, store.root)


def _clear_before_autograd(store: LocalStore) -> None:
    for stored in store.scan():
        if not _is_after_autograd(stored):
            store.remove(stored.key, stored.name)


def _is_after_autograd(stored: StoredEntry) -> bool:
    try:
        return stored.entry is not None and content_of(stored.entry).level == FX
    except CorruptEntryError:
        return False
