"""Loads the libraries of compiled graphs in the process that calls them, also from a file system mounted noexec.

The loader maps the file that was verified through its descriptor, even if another file has its name by then. It cannot
map code from a file system mounted noexec, but it can from memory: the library is copied to an anonymous file, and each
process has its own copy.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from fxpool import forks, notices
from fxpool.errors import NotExecutableError
from fxpool.lowering.core.runtime import Part, runtime
from fxpool.lowering.cpp.unit_source import MODULE
from fxpool.torch_compat.cpp import compile_commands, instruction_sets

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


class _Loaded(Part):
    """The libraries that this process has loaded, by digest; loaded one at a time, under a lock."""

    def __init__(self) -> None:
        self.loading = forks.lock(self, "loading")
        self.modules: dict[str, Any] = {}

    def reset(self) -> None:
        pass  # a library cannot be unloaded


#: Opens and verifies a library's file, and yields its descriptor.
LibraryFile = Callable[[], AbstractContextManager[int]]


class LoadedOnce:
    """A library, identified by the digest of its bytes: loaded once per process, even if several graphs use it.

    `open_library` gets its path and a unique name, and returns the result of `load`.
    """

    def __init__(self, digest: str, file: LibraryFile, open_library: Callable[[str, str], Any]) -> None:
        self._digest, self._file, self._open = digest, file, open_library

    def load(self) -> Any:
        """Return the library's module or handle.

        Raises:
            CorruptEntryError: its file is gone or damaged.
            NotExecutableError: it is on a noexec file system, and memory may not be executed either.
            OSError, ImportError: it cannot be loaded.
        """
        loaded = runtime.part(_Loaded)
        with loaded.loading:
            module = loaded.modules.get(self._digest)
            if module is None:
                with self._file() as file, loadable(file) as path:
                    try:
                        instruction_sets.enable_tiles()
                        module = self._open(path, f"fxpool_{self._digest}")
                    except ImportError as error:
                        if is_forbidden(file):
                            raise NotExecutableError(os.readlink(f"/proc/self/fd/{file}"), str(error)) from error
                        raise
                loaded.modules[self._digest] = module
            return module


class Library(LoadedOnce):
    """The library of a graph's kernels: a module with their functions."""

    def __init__(self, digest: str, file: LibraryFile) -> None:
        super().__init__(digest, file, _kernels_at)


def _kernels_at(path: str, name: str) -> Any:
    """Return the module with the functions of a library, bound to torch's data pointer function."""
    loader = importlib.machinery.ExtensionFileLoader(MODULE, path)
    spec = importlib.util.spec_from_loader(MODULE, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.bind(compile_commands.tensor_data_pointer())
    return module
