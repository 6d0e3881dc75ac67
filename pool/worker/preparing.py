"""Runs a preparation in a worker, and decides whether a copy of the process may serve later jobs.

A copy serves for the preparation of a new worker only if that would lead to the same process. So the preparation must
leave nothing that a fork does not copy or that two processes must not share: threads, child processes, open files and
sockets, temporary files. And all files that it read must be unchanged, which `Files` notes and checks.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil

from fxpool.pool.host import processes

__all__ = ["Files", "prepare"]

# Kernel files: they change without a new date.
_KERNEL = ("/proc/", "/sys/", "/dev/")
# Compiled modules, also while they are written. Their sources count.
_COMPILED = re.compile(r"\.pyc(\.\d+)?$")

_opened: set[str] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Note the files that Python opens, and the directories that it lists, for `Files`."""
    if _opened is None:
        return
    if event == "open" or event == "ctypes.dlopen":
        path = arguments[0]
    elif event == "os.listdir" or event == "os.scandir":
        # The import system lists directories that other programs write to.
        caller = sys._getframe(1)
        path = None if caller.f_code.co_filename.startswith("<frozen importlib") else arguments[0] or "."
    else:
        return
    if isinstance(path, (str, bytes, os.PathLike)):
        name = os.fsdecode(path)
        if "/" in name or event != "ctypes.dlopen":
            _opened.add(os.path.abspath(name))


class Files:
    """The files that a preparation read, each with its date, size and inode; None if it does not exist."""

    def __init__(self, paths: set[str]) -> None:
        self._seen = {
            path: _look(path) for path in paths if not path.startswith(_KERNEL) and not _COMPILED.search(path)
        }

    def changed(self) -> str:
        """Return the path of a file that has changed, or ""."""
        return next((path for path, seen in self._seen.items() if _look(path) != seen), "")

    def changed_since(self, moment: float) -> str:
        """Return the path of a file that was changed after `moment` (`time.time()`), or ""."""
        at = int(moment * 1e9)
        return next((path for path, seen in self._seen.items() if seen is not None and max(seen[:2]) >= at), "")


def _look(path: str) -> tuple[int, int, int, int] | None:
    try:
        facts = os.stat(path)
    except (OSError, ValueError):
        return None
    return facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino


def prepare(function: Callable[[bytes], object], argument: bytes, scratch: str) -> tuple[Files | None, str]:
    """Call `function`; return the files that it read, or None and why the process cannot be copied.

    `scratch` is the worker's directory for temporary files. An exception of the function is such a reason.
    """
    global _opened
    started = time.time()
    modules, descriptors = set(sys.modules), _descriptors()
    if _opened is None:
        sys.addaudithook(_watch)
    _opened = set()
    try:
        function(argument)
    except Exception as error:
        return None, f"the preparation raised {type(error).__name__}"
    finally:
        opened, _opened = _opened, None
    return _copyable(opened | _origins(set(sys.modules) - modules), descriptors, scratch, started)


def _copyable(paths: set[str], descriptors: set[str], scratch: str, started: float) -> tuple[Files | None, str]:
    if (threads := psutil.Process().num_threads()) != 1:
        return None, f"the preparation started {threads - 1} threads"
    if processes.children():
        return None, "the preparation started a process"
    if more := _descriptors() - descriptors:
        return None, f"the preparation left open {', '.join(sorted(more))}"
    if scratch and _holds_files(scratch):
        return None, "the preparation left temporary files"
    files = Files(paths)
    if path := files.changed_since(started):
        return None, f"{path} was changed during the preparation"
    return files, ""


def _origins(names: set[str]) -> set[str]:
    """Return the files that modules were loaded from: with a compiled module at hand, Python opens no source."""
    specs = [getattr(sys.modules.get(name), "__spec__", None) for name in names]
    origins = [getattr(spec, "origin", None) for spec in specs if getattr(spec, "has_location", False)]
    return {os.path.abspath(origin) for origin in origins if isinstance(origin, str)}


def _holds_files(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(entries)
    except OSError:
        return False


def _descriptors() -> set[str]:
    """Return what this process has open: one line per descriptor."""
    lines = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            lines.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
        except OSError:
            pass  # that of the listing
    return lines
