"""Libraries that Inductor builds from one source each: built in a worker, stored in the entry, loaded as they are.

    C++ wrapper          a graph that is called through C++ (g++)
    C++ library          plain C functions (g++)
    Halide kernel        with the runtime that all of them share (Halide's generator, g++)
    CUDA, ROCm template  a matrix product or convolution from CUTLASS or CK (nvcc, ROCm's clang)

    generated call ──▶ `BuiltLinking.take` ──▶ a thread that calls the compiler ──▶ `libraries` ──▶ blobs of the entry
    linked code ──▶ `BuiltLibraries.<name>` ──▶ loaded on first access

A thread compiles each library as soon as its source is generated, so the forward's libraries compile while the backward
is lowered. The compiler runs as a separate process, with Inductor's command line. The first letter of a library's name
says how to load it; the number is its index in the entry.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fxpool.codecache.key import toolchain
from fxpool.errors import CorruptEntryError
from fxpool.lowering.cpp.library import LibraryFile, LoadedOnce
from fxpool.torch_compat.cpp import cpp_wrappers, included_headers, source_kernels
from fxpool.torch_compat.cpp.source_kernels import Built

__all__ = ["BuiltLibraries", "BuiltLinking", "inductors_builds", "placeless"]

_HEADERS = "torch-headers"
_WRAPPER, _LIBRARY, _HALIDE, _TEMPLATE = "e", "l", "h", "t"
_LETTERS = {
    source_kernels.CPP: _LIBRARY,
    source_kernels.HALIDE: _HALIDE,
    source_kernels.CUDA: _TEMPLATE,
    source_kernels.ROCM: _TEMPLATE,
}


@contextlib.contextmanager
def inductors_builds(toolchain_dir: str | None) -> Iterator[None]:
    """While Inductor builds libraries itself: keep its precompiled headers beside the host's facts, name no folders."""
    headers = os.path.join(toolchain_dir, _HEADERS) if toolchain_dir is not None else None
    with cpp_wrappers.headers_in(headers), cpp_wrappers.without_places(_places(toolchain_dir)):
        yield


def _places(toolchain_dir: str | None) -> list[str]:
    return [place for place in (os.environ.get("TORCHINDUCTOR_CACHE_DIR"), toolchain_dir) if place is not None]


def placeless(library: bytes, places: Iterable[str | None]) -> bytes:
    """Return a library with other names for `places`, of the same lengths: an entry names no path of its host.

    g++ was told to leave them out.
    """
    for place in sorted(filter(None, places), key=len, reverse=True):
        name = os.fsencode(place)
        library = library.replace(name, b"/" + b"-" * (len(name) - 1))
    return library


class BuiltLinking:
    """Builds the libraries of one graph; `toolchain_dir` is the directory of the host's facts."""

    def __init__(self, toolchain_dir: str | None) -> None:
        self._tools = toolchain_dir
        self._executor: ThreadPoolExecutor | None = None
        self._pending: list[Future[Built]] = []
        #: The attribute of `BuiltLibraries` that replaces a generated call, by the digest of the library it builds.
        self.names: dict[str, str] = {}
        #: Headers that C++ names and the key does not cover.
        self.unlisted: set[str] = set()

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect the libraries that Inductor would build inside the ``with`` block."""
        with cpp_wrappers.collecting(self._take_wrapper), source_kernels.collecting(self._take_kernel):
            yield

    def _take_wrapper(self, digest: str, source: str, build: Callable[[], bytes]) -> None:
        self.unlisted |= included_headers.unasked(source)
        self.take(_WRAPPER, digest, lambda: Built(build()))

    def _take_kernel(self, kind: str, digest: str, source: str, build: Callable[[], Built]) -> None:
        if kind == source_kernels.CPP:
            self.unlisted |= included_headers.unasked(source)
        self.take(_LETTERS[kind], digest, build)

    def take(self, letter: str, digest: str, build: Callable[[], Built]) -> None:
        """Start to build a library, unless it was started before. Raises NoCompilerError: there is no compiler."""
        if digest in self.names:
            return
        toolchain.require_compiler(self._tools)  # nvcc and Halide's generator call it, too
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="fxpool-built")
        self.names[digest] = f"{letter}{len(self._pending)}"
        self._pending.append(self._executor.submit(build))

    def libraries(self) -> list[bytes]:
        """Return the libraries by number, then the runtimes they need. Raises what the compiler's call raised."""
        built = [future.result() for future in self._pending]
        runtimes = list(dict.fromkeys(one.runtime for one in built if one.runtime is not None))
        places = _places(self._tools)
        return [placeless(library, places) for library in (*(one.library for one in built), *runtimes)]

    def close(self) -> None:
        """End the thread; libraries that it has not started are not built."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)


class BuiltLibraries:
    """The built libraries of a graph, each loaded on first access: `e0`, `h1` and so on."""

    def __init__(self, libraries: list[tuple[str, LibraryFile]]) -> None:
        self._libraries = libraries

    def __getattr__(self, name: str) -> Any:
        letter, number = name[:1], name[1:]
        if letter not in _OPENED or not number.isdecimal():
            raise AttributeError(name)
        if int(number) >= len(self._libraries):
            raise CorruptEntryError(f"the entry lacks the library {name} that its code needs")
        digest, file = self._libraries[int(number)]
        if letter == _HALIDE:
            self._load_runtimes()
        return LoadedOnce(digest, file, _OPENED[letter]).load()

    def _load_runtimes(self) -> None:
        """Load the runtime that kernels refer to by name, before the kernels: it is the last of an entry's libraries.

        There is only one, as a single worker compiles an entry.
        """
        digest, file = self._libraries[-1]
        LoadedOnce(digest, file, lambda path, name: ctypes.CDLL(path, ctypes.RTLD_GLOBAL)).load()


_OPENED: dict[str, Callable[[str, str], Any]] = {
    _WRAPPER: cpp_wrappers.entry_at,
    _LIBRARY: functools.partial(source_kernels.opened, source_kernels.CPP),
    _HALIDE: functools.partial(source_kernels.opened, source_kernels.HALIDE),
    _TEMPLATE: functools.partial(source_kernels.opened, source_kernels.CUDA),
}
