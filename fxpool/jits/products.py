"""Looks products of `fxpool.once` up in this process's stores and its remote cache, and publishes them.

A product is an entry without guards, with the level `once` and the list of its files, if it is a directory. Its
components name its form and its key. A damaged entry is a miss and is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from fxpool import config, counters, interruptions, notices
from fxpool.codecache.store.blobs import BlobRef
from fxpool.codecache.store.entry import Component, Entry, Metadata
from fxpool.errors import StoreError
from fxpool.jits import tree_content
from fxpool.lowering.core import shared_remote
from fxpool.lowering.core.runtime import runtime

if TYPE_CHECKING:
    from fxpool.codecache.remote.leases import Lease, Leases
    from fxpool.codecache.remote.remote_level import RemoteLevel

__all__ = ["CONTENT", "LEVEL", "Read", "Shelf", "piece_names", "tree_in"]

log = notices.logger(__name__)

T = TypeVar("T")
#: Returns the content of a blob, None if it is missing or damaged.
Read = Callable[[BlobRef], "bytes | None"]

LEVEL = "once"
#: The role of the blob of a product that is bytes; those of a directory are `piece_names`.
CONTENT = "content"
# Seconds to wait for another machine that keeps renewing its lease, if no setting and no caller says.
_PATIENCE = 3600.0


def piece_names(entry: Entry) -> list[BlobRef]:
    """Return the pieces of a directory's files, in order."""
    return [entry.blobs[role] for role in sorted(entry.blobs)]


class Shelf:
    """The stores and the remote, for the product of one key. `label` describes the key, `form` the product's form."""

    def __init__(self, key: str, label: str, form: str) -> None:
        """Raises ConfigurationError."""
        self.key, self.label, self.form = key, label, form
        self._settings = config.current()
        self.store = runtime.store(self._settings)
        self._stores = runtime.stores(self._settings)
        self._level: RemoteLevel | None = shared_remote.level_at(
            self._settings.remote_cache, self.store, self._settings
        )
        #: Seconds that the build of the latest result took.
        self.seconds = 0.0
        self._is_damaged = False

    # ---------------------------------------------------------------- looking

    def find(self, use: Callable[[Entry, Read], T | None]) -> T | None:
        """Return the result of `use` for the first entry in the stores for which it is not None.

        `use` may raise StoreError, which is a damaged entry, as None is.
        """
        for store in self._stores:
            for entry in store.entries(self.key):
                if (result := self._used(entry, store.read_blob, use)) is not None:
                    store.mark_used(entry)
                    return result
        return None

    def mark_used(self) -> None:
        """Record that the product was served from elsewhere. Never raises."""
        if self.store is not None:
            self.store.mark_used(Entry(key=self.key))

    def fetch(self, use: Callable[[Entry, Read], T | None], *, again: bool = False) -> T | None:
        """Return the result of `use` for an entry of the remote, which is also written into the store."""
        hit = self._level.find([self.key], _is_product, again=again) if self._level is not None else None
        if hit is None:
            return None
        if self.store is not None:
            try:
                hit.written_to(self.store)
            except StoreError as error:
                self.not_stored(error)
        blobs = {hit.entry.blobs[role]: content for role, content in hit.blobs.items()}
        result = self._used(hit.entry, blobs.get, use)
        if result is not None:
            counters.count("once", "remote_hits")
        return result

    def _used(self, entry: Entry, read: Read, use: Callable[[Entry, Read], T | None]) -> T | None:
        if not _is_product(entry):
            return None
        try:
            result = use(entry, read)
        except StoreError as error:
            log.info("building %s again: %s", self.label, error)
            result = None
        if result is None:
            if not self._is_damaged:
                counters.count("once", "damaged")
            self._is_damaged = True
        else:
            self.seconds = entry.metadata.compile_seconds
        return result

    # ---------------------------------------------------------------- taking turns with other machines

    def take_lease(self, look: Callable[[], T | None], timeout: float | None) -> tuple[T | None, Lease | None]:
        """Wait for this machine's turn to build, at most `timeout` seconds.

        Return the result of `look` if another machine has built, or a lease to `end` after the build; neither without
        leases.
        """
        leases = self._leases()
        if leases is None:
            return None, None
        waited = self._settings.remote_wait
        patience = timeout if timeout is not None else _PATIENCE if waited is None else waited
        return leases.wait(self.key, look, patience)

    def end(self, lease: Lease) -> None:
        """Release a lease once the product, if it was published, is uploaded."""
        if (leases := self._leases()) is not None:
            leases.release(lease, after=[self.key])

    def _leases(self) -> Leases | None:
        if self._level is None or self._level.read_only or self._settings.remote_wait == 0:
            return None
        return self._level.leases

    # ---------------------------------------------------------------- publishing

    def publish(self, pieces: Iterable[tuple[str, bytes]], seconds: float, files: Any = None) -> Entry | None:
        """Store a product, given its blobs by role, and upload it in the background; None if it cannot be stored.

        A failure is counted and warned of once. `files` is the tree of a directory.
        """
        if self.store is None:
            counters.count("once", "not_stored")
            return None
        try:
            blobs = {role: self.store.put_blob(piece) for role, piece in pieces}
            entry = self.store.publish(self._entry(blobs, seconds, files), {})
        except (StoreError, OSError) as error:
            interruptions.pass_on(error)
            self.not_stored(error)
            return None
        if self._level is not None and not self._level.read_only:
            self._level.uploads.offer(self.store.root, entry.key, entry.name)
        return entry

    def _entry(self, blobs: Mapping[str, BlobRef], seconds: float, files: Any) -> Entry:
        content: dict[str, Any] = {"level": LEVEL}
        if files is not None:
            content["tree"] = files
        return Entry(
            key=self.key,
            components=[Component("form", "", self.form), Component("once", self.key, self.label)],
            content=content,
            blobs=dict(blobs),
            metadata=Metadata(label=self.label, created=time.time(), compile_seconds=seconds),
        )

    def not_stored(self, error: Exception) -> None:
        """Count a product that was not stored; warn once."""
        counters.count("once", "not_stored")
        notices.switched_off(
            "cache_not_written",
            f"cannot store {self.label} in {self._settings.cache_dir}, so each process builds it again: {error}",
            about=LEVEL,
        )


def _is_product(entry: Entry) -> bool:
    return isinstance(entry.content, dict) and entry.content.get("level") == LEVEL


def tree_in(entry: Entry) -> tree_content.Tree:
    """Return the tree of an entry. Raises CorruptEntryError."""
    return tree_content.tree_of(entry.content.get("tree"))
