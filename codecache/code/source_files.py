"""Digest files: sources, libraries, and the files of modules."""

from __future__ import annotations

import hashlib
import os
import sys
import types

from fxpool import forks
from fxpool.codecache.code.unproven import UnprovenError

__all__ = ["digest_file", "digest_module", "digest_package"]

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


def digest_module(module: types.ModuleType) -> str:
    """Return the sha256 of a module's name and source (or binary). Raises UnprovenError if it has no file."""
    path = getattr(module, "__file__", None)
    if path is None and module.__name__ in sys.builtin_module_names:
        content = f"builtin {sys.version}"
    else:
        try:
            content = digest_file(path)  # type: ignore[arg-type]
        except (OSError, TypeError) as error:
            raise UnprovenError(f"the module {module.__name__}, which has no source file") from error
    return hashlib.sha256(f"module {module.__name__} {content}".encode()).hexdigest()


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
