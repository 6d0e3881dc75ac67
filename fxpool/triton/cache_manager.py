"""The class that Triton makes for each of its keys. Imports other modules of fxpool inside functions, on first use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fxpool import interruptions, notices, temporary

if TYPE_CHECKING:
    from fxpool.triton.kernel_entries import Compile

__all__ = ["CacheManager"]

log = notices.logger(__name__)


class CacheManager:
    """The files of one of Triton's keys. Triton makes one for each compile; its methods are those that Triton calls."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        from triton.runtime.cache import FileCacheManager  # it has been imported

        self._files = FileCacheManager(key, override=override, dump=dump)
        self._key = key
        # Overrides and dumps are files for people. Within fxpool's compiles, the graph's entry has the kernels.
        self._is_shared = not (override or dump or _in_scratch())
        self._is_group = False
        self._compiles: dict[str, Compile] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_files"], name)

    def get_file(self, filename: str) -> str | None:
        """Return the path of a file, None if no cache has it."""
        path: str | None = self._files.get_file(filename)
        if path is None and self._is_shared and not self._is_group:
            with _harmless(self._key):
                path = (self._compile_of(filename).find() or {}).get(filename)
        return path

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Write a file; return its path."""
        path: str = self._files.put(data, filename, binary=binary)
        if self._is_shared and not self._is_group:
            with _harmless(self._key):
                self._compile_of(filename).publish({filename: path})
        return path

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Return the paths of a kernel's files by name, None if it is to be compiled."""
        self._is_group = True
        group: dict[str, str] | None = self._files.get_group(filename)
        if group is None and self._is_shared:
            with _harmless(self._key):
                group = self._compile_of(filename).wait()
        return group

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        """Complete a kernel, whose files have been put."""
        path: str = self._files.put_group(filename, group)
        if self._is_shared:
            with _harmless(self._key):
                kernel = self._compile_of(filename)
                kernel.publish(group)
                kernel.end()
        return path

    def _compile_of(self, filename: str) -> Compile:
        from fxpool.triton.kernel_entries import Compile

        if filename not in self._compiles:
            self._compiles[filename] = Compile(self._key, filename, self._files, is_group=self._is_group)
        return self._compiles[filename]


def _in_scratch() -> bool:
    """Return whether Triton writes to a temporary directory of a compile of fxpool's."""
    above = os.path.basename(os.path.dirname(os.environ.get("TRITON_CACHE_DIR", "")))
    return above.startswith(f"{temporary.PREFIX}scratch-")


@contextlib.contextmanager
def _harmless(key: str) -> Iterator[None]:
    """Report failures of fxpool once, instead of failing a compile."""
    try:
        yield
    except Exception as error:
        interruptions.pass_on(error)
        log.debug("Triton's key %s", key, exc_info=True)
        notices.once(f"triton:{type(error).__name__}", f"Triton compiles without fxpool's store: {error}")
