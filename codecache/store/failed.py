"""Records of levels at which a graph can't be compiled for the cache, so that later processes skip them.

    <root>/failed/<key>    the reason

Each level has a separate key. Keys include the versions of torch and fxpool, so a new version of either tries again.
`failures.FOLLOWS` has the time for which a record counts.
"""

from __future__ import annotations

import os
import time

from fxpool import failures
from fxpool.codecache.store.blobs import check_directory, read_stored, write_private
from fxpool.codecache.store.layout import is_hex_digest
from fxpool.errors import StoreError

__all__ = ["COMPILE_ERROR", "NO_LEVEL", "add", "find"]

#: Prefix of a reason that came from a compiler, and of one for a graph that did not compile at any level.
COMPILE_ERROR, NO_LEVEL = "compile_error:", "no_level:"
_DIRECTORY = "failed"
_LONGEST = 200


def find(root: str, key: str) -> str:
    """Return why the graph of a key should not be compiled at its level; empty if it may be."""
    path = os.path.join(root, _DIRECTORY, key)
    try:
        modified = os.stat(path).st_mtime  # usually missing: checked before anything that costs more
        check_directory(root)
        reason = read_stored(path)[0].decode("utf-8")
    except (OSError, StoreError, UnicodeDecodeError):
        return ""
    kind = failures.Kind.GRAPH if reason.startswith((COMPILE_ERROR, NO_LEVEL)) else failures.Kind.RESULT
    return reason if time.time() - modified <= failures.FOLLOWS[kind].remembered else ""


def add(root: str, key: str, reason: str) -> None:
    """Record why a graph can't be compiled at a level. Raises StoreError; ValueError for an invalid key."""
    if not is_hex_digest(key):
        raise ValueError(f"{key!r} is not a key: a key is a lower-case sha256")
    check_directory(root)
    write_private(os.path.join(root, _DIRECTORY, key), reason[:_LONGEST].encode())
