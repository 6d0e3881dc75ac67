"""Turns to measure on this host, one after the other in the order they were asked for, over all of a user's processes.

    <runtime root>/measuring/             locked (flock) while a number is taken or given back
                             000000000017-cpu      a turn: locked by the process that has it or waits for it
                             000000000018-cuda-0   its device; a turn for the CPU is one for every device

A turn begins when no earlier one is left that it has to wait for. The kernel unlocks the turns of a process that dies:
whoever comes next removes them. So nobody who waits depends on the good behaviour of anybody but who measures.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from fxpool.errors import PoolUnavailableError
from fxpool.pool.host import inherited

__all__ = ["CPU", "Turn", "device_name", "is_over", "listed", "of_others"]

#: The device whose turn excludes all others.
CPU = "cpu"
_FOLDER = "measuring"
_NEW = "new"
_TURN = re.compile(r"(\d{12})-(.+)")
# Seconds between two looks at the turn before; who is further behind looks less often.
_LOOK_SECONDS = 0.01


def device_name(device: str) -> str:
    """Return a device as it stands in the name of a turn: ``cuda:0`` is ``cuda-0``.

    Raises ValueError if it can't stand there.
    """
    name = device.replace(":", "-")
    if not re.fullmatch(r"[\w-]{1,64}", name):
        raise ValueError(f"{device!r} names no device")
    return name


def _exclude(one: str, other: str) -> bool:
    return one == other or CPU in (one, other)


class Turn:
    """A turn that was asked for; `wait` until it begins, `end` when it is over. `root` is the runtime directory.

    Raises PoolUnavailableError: no file can be made there.
    """

    def __init__(self, root: Path, device: str) -> None:
        self._device = device_name(device)
        self._folder = root / _FOLDER
        self._path = self._folder / _NEW
        self._lock = -1
        try:
            with _locked(self._folder):
                self._take_number()
        except OSError as error:
            self.end()
            raise PoolUnavailableError(f"no turn to measure can be taken in {self._folder}: {error}") from error

    def _take_number(self) -> None:
        new = self._folder / _NEW  # one that is left was a dead process's
        self._lock = os.open(new, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        inherited.descriptors.add(self._lock)  # a child that is forked meanwhile would keep the lock
        # Locked before it has its name: whoever finds it by that would take it for a dead process's.
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, str(os.getpid()).encode())
        self.number = max((number for number, _, _ in _turns(self._folder)), default=0) + 1
        self._path = self._folder / f"{self.number:012}-{self._device}"
        os.rename(new, self._path)

    def wait(self, patience: float) -> bool:
        """Wait until the turn begins; return whether it has. `patience` is in seconds."""
        end = time.monotonic() + patience
        while True:
            before = [
                path
                for number, device, path in _turns(self._folder)
                if number < self.number and _exclude(device, self._device) and _is_held(path)
            ]
            if not before:
                return True
            left = end - time.monotonic()
            if left <= 0:
                return False
            pause = min(left, _LOOK_SECONDS * len(before))
            # The nearest only, until that is over: with many who wait, looking at all takes time from who measures.
            while left > 0 and _is_held(before[-1]):
                time.sleep(pause)
                left = end - time.monotonic()

    def end(self) -> None:
        """Let the next one begin. Idempotent."""
        if self._lock < 0:
            return
        with contextlib.suppress(OSError), _locked(self._folder):
            for path in (self._path, self._folder / _NEW):
                path.unlink(missing_ok=True)
            self._folder.rmdir()  # fails, unless this was the last one
        inherited.descriptors.discard(self._lock)
        os.close(self._lock)
        self._lock = -1


def listed(root: Path) -> list[tuple[str, int]]:
    """Return device and process of each turn, in their order: those that are under way, and those that wait."""
    return [(device, _pid(path)) for _, device, path in _turns(root / _FOLDER) if _is_held(path)]


def of_others(root: Path, but: int = 0) -> list[Path]:
    """Return the turns that are under way or wait, without those of process `but`: see `is_over`."""
    return [path for _, _, path in _turns(root / _FOLDER) if _is_held(path) and _pid(path) != but]


def is_over(turn: Path) -> bool:
    """Return whether a turn of `of_others` has ended."""
    return not _is_held(turn)


def _pid(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return 0


def _turns(folder: Path) -> list[tuple[int, str, Path]]:
    """Return number, device and file of all turns, in order; [] if the folder can't be read."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = [(match, name) for name in names if (match := _TURN.fullmatch(name))]
    return sorted((int(match[1]), match[2], folder / name) for match, name in found)


def _is_held(path: Path) -> bool:
    """Return whether a living process holds a turn. One that no process holds is removed."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # Shared, so that two that look at once don't take each other for the holder.
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with contextlib.suppress(OSError):
            os.unlink(path)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Make the folder and lock it: it may be removed while one waits for the lock. Raises OSError."""
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_still_at(lock, folder):
                yield
                return
        finally:
            os.close(lock)


def _is_still_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False
