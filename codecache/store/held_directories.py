"""Directories of files that were made of entries, for programs that need files: results of `fxpool.once`.

    <root>/directories/<digest>             the files of an entry; a suffix `-1`, ... if a damaged one is in use
    <root>/directories/fxpool-tmp-...       one that is being filled or removed

A directory appears complete, by a rename. A process that uses it holds a shared lock (flock) on it for the rest of its
life, as do the children that it forks, so eviction, which needs the exclusive lock, leaves it. The kernel releases the
lock when they end, however they end. A directory is only a copy: once it is evicted, its entry fills it again. Code
that a process has loaded stays in its memory even if its file is removed.

Programs must not write to these directories: a file that differs from its entry makes the directory count as damaged.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator

from fxpool import directories, forks, temporary
from fxpool.codecache.store import layout
from fxpool.codecache.store.blobs import is_private
from fxpool.codecache.store.layout import BUILT_DIRECTORY

__all__ = ["building", "held", "let_go", "names", "remove"]

# Eviction takes microseconds from its lock to the new name.
_TRIES, _PAUSE = 100, 0.01

_lock = forks.lock(__name__, "_lock")
# Descriptors of the directories that this process holds, by path.
_held: dict[str, int] = {}


@contextlib.contextmanager
def building(root: str) -> Iterator[str]:
    """Make an empty directory in the cache for a builder; it is removed afterwards, unless it was renamed.

    Raises OSError.
    """
    above = os.path.join(root, BUILT_DIRECTORY)
    directories.make_private(above)
    with temporary.directory("built", above) as scratch:
        path = os.path.join(scratch, "content")
        os.mkdir(path, 0o700)
        yield path


def held(root: str, digest: str, is_intact: Callable[[str], bool], fill: Callable[[str], object]) -> str:
    """Return a directory that is held by this process from now on and that `is_intact`.

    Where it is missing, `fill` is called with the path of an empty directory; it may also rename another directory to
    that path. Damaged directories that no process uses are removed. Raises OSError, and what `fill` raises.
    """
    number = 0
    while True:
        path = os.path.join(root, BUILT_DIRECTORY, digest + (f"-{number}" if number else ""))
        with _lock:
            if not _hold(path):
                with building(root) as scratch:
                    fill(scratch)
                    with contextlib.suppress(OSError):
                        # Fails if another process was faster: the directory there is not empty.
                        os.rename(scratch, path)
                if not _hold(path):
                    raise FileNotFoundError(f"{path} was removed as soon as it was filled")
            if is_intact(path):
                with contextlib.suppress(OSError):
                    os.utime(path)  # the time of its last use
                return path
            os.close(_held.pop(path))
        number += not remove(root, os.path.basename(path))


def _hold(path: str) -> bool:
    """Hold a directory; return whether it exists. Where the file system has no locks, it is only looked at."""
    if path in _held and _is_at(path, _held[path]):
        return True
    for _ in range(_TRIES):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # it is being evicted
            os.close(descriptor)
            time.sleep(_PAUSE)
            continue
        except OSError:
            pass
        if is_private(os.fstat(descriptor)) and _is_at(path, descriptor):
            before = _held.pop(path, None)
            if before is not None:
                os.close(before)
            _held[path] = descriptor
            return True
        os.close(descriptor)
    return False


def _is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def let_go() -> int:
    """Hold no directory any longer: eviction may remove them. Return how many were held.

    For a process that is saved to disk with its memory: locks and descriptors do not survive that.
    """
    with _lock:
        descriptors = [*_held.values()]
        _held.clear()
    for descriptor in descriptors:
        os.close(descriptor)
    return len(descriptors)


def names(root: str) -> list[str]:
    """Return the names of the directories, without those that are being filled or removed."""
    listed = layout.names(os.path.join(root, BUILT_DIRECTORY))
    return sorted(name for name in listed if not name.startswith(temporary.PREFIX))


def remove(root: str, name: str, used: float | None = None) -> bool:
    """Remove a directory; return whether it is gone. One that a process holds, or used after `used`, stays."""
    path = os.path.join(root, BUILT_DIRECTORY, name)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if used is not None and os.fstat(descriptor).st_mtime != used:
            return False
        # A new name first: a process must not meet half of it.
        doomed = os.path.join(root, BUILT_DIRECTORY, f"{temporary.PREFIX}{secrets.token_hex(8)}")
        os.rename(path, doomed)
        _make_removable(doomed)
        layout.remove_tree(doomed)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _make_removable(root: str) -> None:
    for path, _, _ in os.walk(root):
        with contextlib.suppress(OSError):
            os.chmod(path, 0o700)
