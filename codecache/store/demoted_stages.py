"""Records of compiled graphs that were measured slower than another compile of the same graph.

    <root>/slower/<key>    the key of the faster entry

Only callers that compile a graph in several ways read these records; an entry under `key` itself stays valid.
"""

from __future__ import annotations

import os

from fxpool.codecache.store.blobs import check_directory, read_stored, write_private
from fxpool.codecache.store.layout import is_hex_digest
from fxpool.errors import StoreError

__all__ = ["add", "find"]

_DIRECTORY = "slower"


def find(root: str, key: str) -> str | None:
    """Return the key of the entry that was faster than `key`'s, or None."""
    path = os.path.join(root, _DIRECTORY, key)
    if not os.path.exists(path):  # the usual case, before anything that costs more
        return None
    try:
        check_directory(root)
        text = read_stored(path)[0].decode("ascii")
    except (OSError, StoreError, UnicodeDecodeError):
        return None
    return text if is_hex_digest(text) else None


def add(root: str, key: str, faster: str) -> None:
    """Record that the entry under `faster` is faster than `key`'s. Raises StoreError; ValueError for an invalid key."""
    for one in (key, faster):
        if not is_hex_digest(one):
            raise ValueError(f"{one!r} is not a key: a key is a lower-case sha256")
    check_directory(root)
    write_private(os.path.join(root, _DIRECTORY, key), faster.encode("ascii"))
