"""Digest files: sources, libraries, and the files of packages."""

from __future__ import annotations

import hashlib
import os
import types

from fxpool import forks
from fxpool.codecache.code.grammar import UnprovenError

__all__ = ["digest_file", "digest_package"]

_files: dict[tuple[str, int, int, int, int], str] = {}
_files_lock = forks.lock(__name__, "_files_lock")


def digest_file(path: str) -> str:
    """Return a file's sha256, cached per process until its inode, size or time changes. Raises OSError."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        identity = (os.path.abspath(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        with _files_lock:
            if known := _files.get(identity):
                return known
        whole = hashlib.sha256()
        while chunk := file.read(1 << 20):
            whole.update(chunk)
    with _files_lock:
        _files[identity] = whole.hexdigest()
    return whole.hexdigest()


def digest_package(package: types.ModuleType) -> str:
    """Return the sha256 of all Python sources of a package, loaded or not. Raises UnprovenError."""
    whole = hashlib.sha256()
    try:
        for top in sorted(package.__path__):
            for directory, below, names in os.walk(top):
                below.sort()
                for name in sorted(names):
                    if name.endswith(".py"):
                        path = os.path.join(directory, name)
                        whole.update(f"{os.path.relpath(path, top)} {digest_file(path)}\n".encode())
    except OSError as error:
        raise UnprovenError(f"the package {package.__name__}: {error}") from error
    return whole.hexdigest()
