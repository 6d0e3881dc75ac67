"""Records of the entries whose code is of given graphs, as AOTAutograd makes them.

    <root>/lowered/<digest>    key and name of an entry

Programs that are spelled in different ways have different keys, and may lead to the same graphs: then their code is the
same, too. An entry that is gone makes its record void.
"""

from __future__ import annotations

import os

from fxpool.codecache.store.blobs import check_directory, read_stored, write_private
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.layout import is_hex_digest
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import StoreError

__all__ = ["add", "find"]

_DIRECTORY = "lowered"


def find(store: LocalStore, digest: str) -> Entry | None:
    """Return the complete entry that is recorded for a graph's digest, or None."""
    path = os.path.join(store.root, _DIRECTORY, digest)
    if not os.path.exists(path):
        return None
    try:
        check_directory(store.root)
        key, _, name = read_stored(path)[0].decode("ascii").partition(" ")
    except (OSError, StoreError, UnicodeDecodeError):
        return None
    if not is_hex_digest(key):
        return None
    return next((one for one in store.entries(key) if one.name == name and store.complete(one)), None)


def add(store: LocalStore, digest: str, entry: Entry) -> None:
    """Record an entry of `store` for a graph's digest. Raises StoreError; ValueError for an invalid digest."""
    if not is_hex_digest(digest):
        raise ValueError(f"{digest!r} is not a lower-case sha256")
    check_directory(store.root)
    write_private(os.path.join(store.root, _DIRECTORY, digest), f"{entry.key} {entry.name}".encode("ascii"))
