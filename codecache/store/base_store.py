"""A read-only store below the user's own, filled in advance.

For container images: root fills the cache when the image is built, and users run on top of it. Its contents run as
code, so the directory must belong to root, to the user or to a trusted owner, and no other user may be able to write to
it or to replace it. The user may lack permission to write to it, so damaged files are not moved aside and hits are not
recorded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fxpool import config
from fxpool.codecache.store.blobs import BlobRef, check_directory
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import StoreError

__all__ = ["BaseStore"]

_SETTING = "FXPOOL_CACHE_BASE"


class BaseStore(LocalStore):
    """A read-only cache directory of root's, ours or a trusted owner's. Writing raises StoreError, or does nothing."""

    def __init__(self, root: str) -> None:
        """Raises UnsafeDirectoryError if others could have written to `root`, StoreError if it can't be read."""
        self.owners = tuple(sorted(config.trusted_owners()))
        super().__init__(root)
        unreadable = _unreadable(self.root)
        if unreadable is not None:
            raise StoreError(f"cannot use the cache base {self.root}: {unreadable}", remedy=_remedy(self.root))

    def check(self) -> None:
        """Raise UnsafeDirectoryError if others than root, the user and trusted owners could have written to it."""
        check_directory(self.root, self.owners, "cache base", _SETTING)

    def publish(self, entry: Entry, blobs: Mapping[str, bytes]) -> Entry:
        raise self._refusal()

    def put_blob(self, content: bytes) -> BlobRef:
        raise self._refusal()

    def remove(self, key: str, name: str | None = None) -> int:
        raise self._refusal()

    def remove_blob(self, ref: BlobRef) -> bool:
        raise self._refusal()

    def clear(self) -> None:
        raise self._refusal()

    def mark_used(self, entry: Entry) -> None:
        pass

    def sweep(self) -> int:
        return 0

    def _set_aside(self, path: str) -> None:
        pass

    def _refusal(self) -> StoreError:
        return StoreError(f"the cache base {self.root} is read-only")


def _unreadable(root: str) -> str | None:
    """Return why a store can't be read, None if it can. Tries to read the first entry and the first blob."""
    for top, depth in (("", 0), ("entries", 3), ("blobs", 2)):
        path = os.path.join(root, top) if top else root
        for level in range(depth + 1):
            try:
                if level == depth and depth:
                    with open(path, "rb"):
                        pass
                    break
                names = sorted(name for name in os.listdir(path) if not name.startswith("."))
            except FileNotFoundError:
                if top:
                    break  # no entry or blob has been stored yet
                return f"the directory {root} does not exist"
            except OSError as error:
                return f"{path}: {error.strerror}"
            if not names:
                break
            path = os.path.join(path, names[0])
    return None


def _remedy(root: str) -> str:
    return f"fill it and make it readable (chmod -R go+rX {root}), or unset {_SETTING}"
