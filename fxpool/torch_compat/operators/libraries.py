"""Finds the shared library of this process that registered an operator.

The dispatcher knows the C++ source in which a kernel was registered, from the compiler's text for ``__FILE__``; the
library it was compiled into contains that text. All libraries mapped into this process are considered, however they
were loaded: by ``torch.ops.load_library``, by an extension module, or by another library.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from fxpool.torch_compat.operators import dispatch_probe
from fxpool.torch_compat.operators.dispatch_probe import NotFoundError

__all__ = ["overridden", "that_contain"]

_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
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


def overridden() -> list[tuple[str, str, str]]:
    """Return (operator of torch, dispatch key or alias, library) of kernels that other libraries registered.

    The dispatcher is read again only if another library with registrations was loaded.
    """
    loads = _loads()
    if loads is None or loads != _overriding.loads:
        linked = (path for path in _mapped(None) if _is_linked_with_torch(path))
        registering = frozenset(path for path in linked if _holds(path, _REGISTERS))
        if registering != _overriding.libraries:
            _overriding.kernels = sorted(_registered_by(registering)) if registering else []
        _overriding.loads, _overriding.libraries = loads, registering
    return _overriding.kernels


# Part of the mangled name of what ``TORCH_LIBRARY_IMPL`` calls: kernels that Inductor generates do not contain it.
_REGISTERS = b"_ZN5torch7Library"


class _Overriding:
    """The registrations of libraries outside torch for its operators, when so many libraries had been loaded."""

    loads: tuple[int, int] | None = None
    libraries: frozenset[str] = frozenset()
    kernels: list[tuple[str, str, str]] = []


_overriding = _Overriding()


def _registered_by(paths: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    owners: dict[str, str] = {}
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith(("aten::", "prims::")):
            continue
        for key, source in dispatch_probe.registered(name):
            if source not in owners:
                owners[source] = next((path for path in paths if _holds(path, source.encode())), "")
            if owners[source]:
                yield name, key, owners[source]


_linked: dict[tuple[str, int, int, int], bool] = {}


def _is_linked_with_torch(path: str) -> bool:
    """Return whether a library names torch's among those that it needs; True if its format is unknown.

    Reads the dynamic section, a thousandth of what searching the file would read (ELF specification, chapter 5).
    """
    status = os.stat(path)
    identity = (path, status.st_ino, status.st_size, status.st_mtime_ns)
    if identity not in _linked:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                _linked[identity] = any(name.startswith((b"libc10", b"libtorch")) for name in _needed(content))
            except (struct.error, ValueError, StopIteration):
                _linked[identity] = True
    return _linked[identity]


def _needed(content: mmap.mmap) -> Iterator[bytes]:
    """Yield the names of the libraries that a 64-bit ELF file needs. Raises ValueError for another format."""
    if content[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a little-endian ELF file of 64 bits")
    (headers,) = struct.unpack_from("<Q", content, 32)
    size, number = struct.unpack_from("<HH", content, 54)
    segments = [struct.unpack_from("<IIQQQQ", content, headers + size * i) for i in range(number)]
    _, _, start, _, _, length = next(one for one in segments if one[0] == _DYNAMIC)
    entries = [struct.unpack_from("<qQ", content, start + at) for at in range(0, length, 16)]
    address = next(value for tag, value in entries if tag == _STRING_TABLE)
    texts = next(
        address - memory + offset
        for kind, _, offset, memory, _, bytes_ in segments
        if kind == _LOADED and memory <= address < memory + bytes_
    )
    for tag, value in entries:
        if tag == _NEEDED:
            yield content[texts + value : content.find(b"\0", texts + value)]


_LOADED, _DYNAMIC = 1, 2  # types of segments
_NEEDED, _STRING_TABLE = 1, 5  # tags of the dynamic section


class _Library(ctypes.Structure):
    """The start of ``struct dl_phdr_info``."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("number", ctypes.c_uint16),
        ("adds", ctypes.c_ulonglong),
        ("subs", ctypes.c_ulonglong),
    )


def _loads() -> tuple[int, int] | None:
    """Return how many libraries this process has loaded and unloaded; None if the C library does not count them."""
    counted: list[tuple[int, int]] = []

    def first(library: Any, size: int, _: Any) -> int:
        if size >= ctypes.sizeof(_Library):
            counted.append((library.contents.adds, library.contents.subs))
        return 1  # ends the iteration

    try:
        _iterate = ctypes.CDLL(None).dl_iterate_phdr
    except (OSError, AttributeError):
        return None
    _iterate(_CALLBACK(first), None)
    return counted[0] if counted else None


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p)


@functools.cache
def _linked_to() -> frozenset[str]:
    """Return where torch's libraries are if torch's directory holds links: the kernel reports libraries resolved."""
    places = [entry for entry in (_TORCH, os.path.join(_TORCH, "lib")) if os.path.isdir(entry)]
    return frozenset(
        os.path.realpath(entry.path) for place in places for entry in os.scandir(place) if ".so" in entry.name
    )


def _mapped(operator: str | None) -> set[str]:
    """Return paths of libraries from outside torch and the system. Those replaced since they were mapped are left out
    if no operator is asked for, else they raise NotFoundError."""
    paths: set[str] = set()
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) < 6 or ".so" not in fields[5]:
                continue
            path, inode = fields[5], int(fields[4])
            if path.startswith(_TORCH + os.sep) or (path.startswith(_SYSTEM) and "-packages/" not in path):
                continue
            if path in _linked_to():
                continue
            replaced = path.endswith(" (deleted)")
            path = path.removesuffix(" (deleted)")
            try:
                replaced = replaced or os.stat(path).st_ino != inode
            except OSError:
                replaced = True
            if replaced:
                if operator is None:
                    continue
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
