"""Levels at which a graph was tried and can't be compiled for being kept: later processes don't try them again.

    <root>/failed/<key>    the reason

A key is of one level. It holds torch and fxpool, too: with another of either it is another key, and another chance.
What a compiler refused may have been for want of something (a disk was full, a process was killed), so that is believed
for a day.
"""

from __future__ import annotations

import os
import time

from fxpool.codecache.blobs import check_directory, read_private, write_private
from fxpool.codecache.entry import is_hex_digest
from fxpool.errors import StoreError

__all__ = ["COMPILE_ERROR", "add", "find"]

#: how a reason begins that is a compiler's
COMPILE_ERROR = "compile_error:"
_DIRECTORY = "failed"
_BELIEVED = 24 * 3600.0
_LONGEST = 200


def find(root: str, key: str) -> str:
    """Why the graph of a key is not to be tried at its level; empty if it is."""
    path = os.path.join(root, _DIRECTORY, key)
    try:
        modified = os.stat(path).st_mtime  # mostly there is none, which is seen before anything that costs more
        check_directory(root)
        reason = read_private(path)[0].decode("utf-8")
    except (OSError, StoreError, UnicodeDecodeError):
        return ""
    return "" if reason.startswith(COMPILE_ERROR) and time.time() - modified > _BELIEVED else reason


def add(root: str, key: str, reason: str) -> None:
    """Remember why a graph can't be had at a level. Raises StoreError, ValueError for what is no key."""
    if not is_hex_digest(key):
        raise ValueError(f"{key!r} is no key: a lower-case sha256 is")
    check_directory(root)
    write_private(os.path.join(root, _DIRECTORY, key), reason[:_LONGEST].encode())
