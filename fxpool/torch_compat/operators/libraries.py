"""Finds the shared library of this process that registered an operator.

The dispatcher knows the C++ source in which a kernel was registered, from the compiler's text for ``__FILE__``; the
library it was compiled into contains that text. All libraries mapped into this process are considered, however they
were loaded: by ``torch.ops.load_library``, by an extension module, or by another library.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable

import torch

from fxpool.torch_compat.operators.dispatch_probe import NotFoundError

__all__ = ["that_contain"]

_TORCH_ROOT = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_SYSTEM = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")
_texts: dict[tuple[str, int, int, int], dict[bytes, bool]] = {}


def that_contain(sources: Iterable[str], operator: str) -> list[str]:
    """Return paths of the mapped libraries that `sources` were compiled into, and of libraries that these name.

    If no library contains the name of a source, all libraries that are linked with torch are returned.

    Raises NotFoundError: there is no such library, or its file was replaced after it was mapped.
    """
    candidates = {path for path in _mapped(operator) if _holds(path, b"libc10")}
    paths: set[str] = set()
    for source in sorted(sources):
        holders = {path for path in candidates if _holds(path, source.encode())}
        paths |= holders or candidates
    while more := {
        other
        for other in candidates - paths
        if any(_holds(path, os.path.basename(other).encode() + b"\0") for path in paths)
    }:
        paths |= more
    if not paths:
        raise NotFoundError(f"the library that registered {operator}: none is mapped that is not torch's")
    return sorted(paths)


def _mapped(operator: str) -> set[str]:
    paths: set[str] = set()
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) < 6 or ".so" not in fields[5]:
                continue
            path, inode = fields[5], int(fields[4])
            if path.startswith(_TORCH_ROOT) or (path.startswith(_SYSTEM) and "-packages/" not in path):
                continue
            replaced = path.endswith(" (deleted)")
            path = path.removesuffix(" (deleted)")
            try:
                replaced = replaced or os.stat(path).st_ino != inode
            except OSError:
                replaced = True
            if replaced:
                if path in paths or _may_register(path):
                    raise NotFoundError(
                        f"the library that registered {operator}: {path} was replaced since it was mapped"
                    )
                continue
            paths.add(path)
    return paths


def _may_register(path: str) -> bool:
    """Return whether a replaced library could have registered operators: its new file links to torch, or is gone."""
    try:
        return _holds(path, b"libc10")
    except OSError:
        return True


def _holds(path: str, text: bytes) -> bool:
    status = os.stat(path)
    known = _texts.setdefault((path, status.st_ino, status.st_size, status.st_mtime_ns), {})
    if text not in known:
        with open(path, "rb") as file:
            if status.st_size == 0:
                known[text] = False
            else:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    known[text] = content.find(text) >= 0
    return known[text]
