"""Compiled kernels by content, so that the next graph with an equal kernel does not compile it again.

    <root>/kernels/<digest>     sha256 of the rest of the file; the content, packed with zstandard

A file's name is the digest of all that its content depends on. Entries do not refer to these files: one that is missing
or damaged costs a compile. They are evicted by the time of their last use.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

import zstandard

from fxpool import notices
from fxpool.codecache.store.blobs import read_stored, write_private
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import CorruptEntryError, StoreError

__all__ = ["KernelFiles"]

log = notices.logger(__name__)

_DIRECTORY = "kernels"
_DIGEST_SIZE = hashlib.sha256().digest_size
# Bytes of one compiled unit. Real ones have some 100 KB.
_MOST = 256 << 20


class KernelFiles:
    """The compiled kernels of a store, of graphs that have the same `conditions` (`GraphKey.kernel_conditions`)."""

    def __init__(self, store: LocalStore, conditions: str) -> None:
        self._store, self._conditions = store, conditions
        self._failed = False

    def _path(self, parts: Iterable[str]) -> str:
        name = hashlib.sha256("\0".join((self._conditions, *parts)).encode()).hexdigest()
        return os.path.join(self._store.root, _DIRECTORY, name)

    def find(self, *parts: str) -> bytes | None:
        """Return the verified content stored under `parts`; None if it is missing or cannot be used."""
        path = self._path(parts)
        if not self._store.is_safe():
            return None
        content: bytes | None = self._store.guarded(path, lambda: _unpacked(path, self._store.owners))
        if content is not None:
            try:
                os.utime(path)
            except OSError:
                pass
        return content

    def keep(self, content: bytes, *parts: str) -> None:
        """Store `content` under `parts`. Never raises: after a failure, other graphs compile it again."""
        if self._failed:
            return
        packed = zstandard.ZstdCompressor(level=1).compress(content)
        try:
            self._store.prepare_root()
            write_private(self._path(parts), hashlib.sha256(packed).digest() + packed, synced=False)
        except StoreError as error:
            self._failed = True
            log.info("could not store compiled kernels, the next graph compiles them again: %s", error)


def _unpacked(path: str, owners: tuple[int, ...]) -> bytes:
    data, _ = read_stored(path, owners)
    packed = data[_DIGEST_SIZE:]
    if hashlib.sha256(packed).digest() != data[:_DIGEST_SIZE]:
        raise CorruptEntryError(f"the digest of {path} is wrong")
    try:
        if not 0 <= zstandard.frame_content_size(packed) <= _MOST:
            raise CorruptEntryError(f"{path} says that it has more than {_MOST} bytes")
        return zstandard.ZstdDecompressor().decompress(packed)
    except zstandard.ZstdError as error:
        raise CorruptEntryError(f"{path} cannot be unpacked: {error}") from error
