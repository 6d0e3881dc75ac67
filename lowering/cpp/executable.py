"""Loads shared libraries from a file system that is mounted noexec.

The loader cannot map code from such a file system, but it can from memory. So a library is copied to an anonymous file
until it is loaded. The only cost is that each process has its own copy.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator

from fxpool import notices

__all__ = ["is_forbidden", "loadable"]

log = notices.logger(__name__)
# The loader treats libraries of equal names as the same. Descriptors are reused; these numbers are not.
_numbers = itertools.count(1)


def is_forbidden(path: str) -> bool:
    """Return whether the file system of a file or directory is mounted ``noexec``."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
    except OSError:
        return False


@contextlib.contextmanager
def loadable(path: str) -> Iterator[str]:
    """Yield a path under which a library can be loaded: its own, or that of a copy in memory."""
    if not is_forbidden(path):
        yield path
        return
    log.info("%s is on a file system mounted noexec: loading it from memory", path)
    with contextlib.ExitStack() as stack:
        try:
            copy = os.memfd_create(os.path.basename(path)[:200], os.MFD_CLOEXEC)
            stack.callback(os.close, copy)
            with open(path, "rb") as file, open(copy, "wb", closefd=False) as written:
                shutil.copyfileobj(file, written, 1 << 20)
        except OSError as error:
            log.info("cannot copy %s into memory: %s", path, error)
            yield path
        else:
            yield f"/proc/self/fd/{_another_way(next(_numbers))}{copy}"


def _another_way(number: int) -> str:
    """Return a relative path from a directory to itself, spelled differently for each number, and short."""
    return "".join("./" if bit == "1" else ".//" for bit in f"{number:b}")
