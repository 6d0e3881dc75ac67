"""Loads the libraries of compiled graphs in the process that calls them."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from fxpool import forks
from fxpool.errors import NotExecutableError
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.cpp import executable
from fxpool.lowering.cpp.unit_source import MODULE
from fxpool.torch_compat.cpp import commands, instruction_sets


class _Loaded:
    """The libraries that this process has loaded, by digest; loaded one at a time, under a lock."""

    def __init__(self) -> None:
        self.loading = forks.lock(self, "loading")
        self.modules: dict[str, Any] = {}

    def after_fork_in_child(self) -> None:
        pass  # the child has the same libraries mapped

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
                with self._file() as file, executable.loadable(file) as path:
                    try:
                        instruction_sets.enable_tiles()
                        module = self._open(path, f"fxpool_{self._digest}")
                    except ImportError as error:
                        if executable.is_forbidden(file):
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
    module.bind(commands.tensor_data_pointer())
    return module
