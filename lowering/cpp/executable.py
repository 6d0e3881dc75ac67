"""Loads shared libraries through a descriptor, also from a file system that is mounted noexec.

The loader maps the file that was verified through the descriptor, even if another file has its name by then. It cannot
map code from a file system mounted noexec, but it can from memory: the library is copied to an anonymous file, and each
process has its own copy.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator

from fxpool import notices

__all__ = ["is_forbidden", "loadable", "loadable_file"]

log = notices.logger(__name__)
# The loader treats libraries of equal names as the same. Descriptors are reused; these numbers are not.
_numbers = itertools.count(1)


def is_forbidden(file: str | int) -> bool:
    """Return whether the file system of a file or directory is mounted ``noexec``."""
    try:
        return bool(os.statvfs(file).f_flag & os.ST_NOEXEC)
    except OSError:
        return False


@contextlib.contextmanager
def loadable_file(path: str) -> Iterator[str]:
    """Like `loadable`, for the library at `path`. Raises OSError."""
    with open(path, "rb") as file, loadable(file.fileno()) as place:
        yield place


@contextlib.contextmanager
def loadable(library: int) -> Iterator[str]:
    """Yield a path under which an open library can be loaded: that of its descriptor, or of a copy in memory."""
    with contextlib.ExitStack() as stack:
        if is_forbidden(library):
            log.info("%s is on a file system mounted noexec: loading it from memory", _name(library))
            try:
                copy = os.memfd_create(os.path.basename(_name(library))[:200], os.MFD_CLOEXEC)
                stack.callback(os.close, copy)
                with open(library, "rb", closefd=False) as file, open(copy, "wb", closefd=False) as written:
                    shutil.copyfileobj(file, written, 1 << 20)
            except OSError as error:
                log.info("cannot copy %s into memory: %s", _name(library), error)
            else:
                library = copy
        yield f"/proc/self/fd/{_another_way(next(_numbers))}{library}"


def _name(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return str(descriptor)


def _another_way(number: int) -> str:
    """Return a relative path from a directory to itself, spelled differently for each number, and short."""
    return "".join("./" if bit == "1" else ".//" for bit in f"{number:b}")
