"""Small records about graphs and hosts: a private file per key, which only hints at what to try or to skip.

    <root>/failed/<key>               why a graph can't be compiled for the cache at a level
    <root>/slower/<key>               the key of an entry that was measured faster than that of `key`
    <root>/lowered/<digest>           key and name of the entry with the code of a graph as AOTAutograd makes it
    <root>/quarantine/<key>.json      see `quarantine.py`
    <root>/toolchain/<digest>.json    see `key/probe_cache.py`
    <root>/pending/<key>-<name>       see `remote/pending.py`

Records are data and never run as code. One that is missing, damaged, or that another user could have written says
nothing. Over the limits of the directory, those of graphs are evicted by age.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from fxpool import failures
from fxpool.codecache.store import layout
from fxpool.codecache.store.blobs import check_directory, read_stored, write_private
from fxpool.codecache.store.layout import is_hex_digest
from fxpool.errors import StoreError

__all__ = ["COMPILE_ERROR", "NO_LEVEL", "Records", "demoted", "failed", "lowered"]

#: Prefix of a reason that came from a compiler, and of one for a graph that did not compile at any level.
COMPILE_ERROR, NO_LEVEL = "compile_error:", "no_level:"
_LONGEST_REASON = 200
T = TypeVar("T")


class Records(Generic[T]):
    """The records in one directory. A key is a digest, or two with a hyphen; other keys raise ValueError.

    `decode` gets the content and the Unix time at which it was written; it returns None for a record that no longer
    counts, and raises ValueError for content that `encode` does not return. With `synced`, records survive a crash of
    the host.
    """

    def __init__(
        self,
        directory: str,
        encode: Callable[[T], bytes],
        decode: Callable[[bytes, float], T | None],
        *,
        suffix: str = "",
        synced: bool = True,
    ) -> None:
        self._directory, self._suffix, self._synced = directory, suffix, synced
        self._encode, self._decode = encode, decode

    def path(self, root: str, key: str) -> str:
        """Return the path of a record."""
        if not all(map(is_hex_digest, key.split("-"))):
            raise ValueError(f"{key!r} is not a key: a key is a lower-case sha256")
        return os.path.join(root, self._directory, key + self._suffix)

    def find(self, root: str, key: str) -> T | None:
        """Return the record of a key, or None."""
        path = self.path(root, key)
        if not os.path.exists(path):  # the usual case, before anything that costs more
            return None
        try:
            check_directory(root)
            content, status = read_stored(path)
            return self._decode(content, status.st_mtime)
        except (OSError, StoreError, ValueError):
            return None

    def add(self, root: str, key: str, record: T) -> None:
        """Write the record of a key; it replaces an earlier one. Raises StoreError."""
        path = self.path(root, key)
        check_directory(root)
        write_private(path, self._encode(record), synced=self._synced)

    def remove(self, root: str, key: str) -> bool:
        """Remove the record of a key; return whether it existed. Raises OSError."""
        try:
            os.unlink(self.path(root, key))
        except FileNotFoundError:
            return False
        return True

    def keys(self, root: str) -> list[str]:
        """Return the keys of all records, sorted."""
        names = layout.names(os.path.join(root, self._directory))
        keys = [name.removesuffix(self._suffix) for name in names if name.endswith(self._suffix)]
        return sorted(key for key in keys if all(map(is_hex_digest, key.split("-"))))


def _reason(content: bytes, written: float) -> str | None:
    reason = content.decode()
    kind = failures.Kind.GRAPH if reason.startswith((COMPILE_ERROR, NO_LEVEL)) else failures.Kind.RESULT
    return reason if time.time() - written <= failures.FOLLOWS[kind].remembered else None


def _key(content: bytes, _: float) -> str | None:
    key = content.decode("ascii")
    return key if is_hex_digest(key) else None


def _address(content: bytes, _: float) -> tuple[str, str] | None:
    key, _separator, name = content.decode("ascii").partition(" ")
    return (key, name) if is_hex_digest(key) and is_hex_digest(name) else None


#: Why a graph can't be compiled at a level. Each level has its own key; keys include the versions of torch and fxpool,
#: so a new version of either tries again. `failures.FOLLOWS` has the time for which a record counts.
failed: Records[str] = Records("failed", lambda reason: reason[:_LONGEST_REASON].encode(), _reason)
#: The key of the faster entry. Only callers that compile a graph in several ways read it; the slower entry is valid.
demoted: Records[str] = Records("slower", str.encode, _key)
#: (key, name) of the entry with the code of a graph. Programs that are spelled in different ways have different keys,
#: and may lead to the same graphs. The entry may be gone.
lowered: Records[tuple[str, str]] = Records("lowered", lambda address: " ".join(address).encode(), _address)
