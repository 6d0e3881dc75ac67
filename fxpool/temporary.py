"""Temporary directories of this process, and removal of those that killed processes left.

    with temporary.directory("unit") as path: ...
    path = temporary.until_exit("unit")     removed when this process ends

A directory is locked while its process uses it. The kernel releases the lock when the process dies, however it dies,
and the next process that makes a directory beside it removes it. A child that it forked holds the lock, too.
Imports no other fxpool module.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator

__all__ = ["PREFIX", "directory", "sweep", "until_exit"]

PREFIX = "fxpool-tmp-"

_ATTEMPTS = 10
# Parents that this process has swept.
_swept: set[str] = set()


@contextlib.contextmanager
def directory(kind: str, parent: str | None = None) -> Iterator[str]:
    """Make a directory below `parent`, by default the system's; remove it afterwards. Yields its path.

    The first call for a parent also removes what killed processes left there.

    Raises:
        OSError: it cannot be made or locked.
    """
    parent = parent or tempfile.gettempdir()
    for _ in range(_ATTEMPTS):
        with (
            tempfile.TemporaryDirectory(prefix=f"{PREFIX}{kind}-", dir=parent, ignore_cleanup_errors=True) as path,
            _locked(path) as descriptor,
        ):
            if descriptor is None:
                continue  # a process that sweeps took it before it was locked
            if parent not in _swept:
                _swept.add(parent)
                if _locks_exclude(path):
                    sweep(parent)
            yield path
            return
    raise FileExistsError(f"temporary directories in {parent} are removed by another process as soon as they are made")


# (pid, path) of the directories of `until_exit`. Their locks are never closed.
_until_exit: list[tuple[int, str]] = []


def until_exit(kind: str, parent: str | None = None) -> str:
    """Make a directory like `directory` that stays until this process ends; return its path.

    A child that ends leaves the directories of its parent.

    Raises:
        OSError: it cannot be made or locked.
    """
    for _ in range(_ATTEMPTS):
        path = tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-", dir=parent)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if _lock(descriptor) and _is_at(path, descriptor):
            _until_exit.append((os.getpid(), path))
            return path
        os.close(descriptor)
    raise FileExistsError(f"temporary directories in {parent} are removed by another process as soon as they are made")


@atexit.register
def _remove_at_exit() -> None:
    for pid, path in _until_exit:
        if pid == os.getpid():
            shutil.rmtree(path, ignore_errors=True)


def sweep(parent: str | None = None) -> None:
    """Remove the directories of ended processes of this user from `parent`, by default the system's.

    Never raises: what cannot be read or removed is left.
    """
    parent = parent or tempfile.gettempdir()
    try:
        with os.scandir(parent) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(PREFIX)]
    except OSError:
        return
    for name in names:
        path = os.path.join(parent, name)
        with contextlib.suppress(OSError), _locked(path) as descriptor:
            if descriptor is not None and os.fstat(descriptor).st_uid == os.geteuid():
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[int | None]:
    """Lock a directory; yields its descriptor, or None if another process has locked or removed it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor if _lock(descriptor) and _is_at(path, descriptor) else None
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _locks_exclude(path: str) -> bool:
    """Return whether the file system's locks exclude: on some network mounts every process gets every lock."""
    try:
        with _locked(path) as descriptor:
            return descriptor is None
    except OSError:
        return False
