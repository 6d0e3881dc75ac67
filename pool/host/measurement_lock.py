"""Measurement locks: a user's processes on this host measure one after the other, in the order of their requests.

    <runtime root>/measuring/             locked (flock) while a number is taken or given back
                             000000000017-cpu      a turn: locked by the process that measures or waits
                             000000000018-cuda-0   the name ends with the device; the CPU excludes every device

A turn begins when every earlier turn for the device has ended. When a process dies, the kernel unlocks its turns, and
the next process removes them. So a waiting process depends on the processes before it only while they live.
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
from fxpool.pool.host import fork_inheritance

__all__ = ["CPU", "Turn", "device_name", "is_over", "listed", "of_others", "sweep"]

#: The device whose turn excludes the turns of all devices.
CPU = "cpu"
_FOLDER = "measuring"
_NEW = "new"
_TURN = re.compile(r"(\d{12})-(.+)")
# Seconds between two checks of the turn before. A process further back in the queue checks less often.
_LOOK_SECONDS = 0.01


def device_name(device: str) -> str:
    """Return a device's form in the name of a turn: ``cuda-0`` for ``cuda:0``.

    Raises ValueError for characters that the name can't contain.
    """
    name = device.replace(":", "-")
    if not re.fullmatch(r"[\w-]{1,64}", name):
        raise ValueError(f"{device!r} is not the name of a device")
    return name


def _exclude(first: str, second: str) -> bool:
    return first == second or CPU in (first, second)


class Turn:
    """A request for the measurement lock of a device: `wait` until it begins, then `end` it.

    `root` is the runtime directory. Raises PoolUnavailableError if no file can be created there.
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
            raise PoolUnavailableError(f"cannot take the measuring lock in {self._folder}: {error}") from error

    def _take_number(self) -> None:
        new = self._folder / _NEW  # an existing file is left from a dead process
        self._lock = os.open(new, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fork_inheritance.descriptors.add(self._lock)  # a forked child would keep the lock
        # Lock the file before renaming it: other processes remove an unlocked turn as that of a dead process.
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, str(os.getpid()).encode())
        self.number = max((number for number, _, _ in _turns(self._folder)), default=0) + 1
        self._path = self._folder / f"{self.number:012}-{self._device}"
        os.rename(new, self._path)

    def wait(self, patience: float) -> bool:
        """Wait for the turn to begin, at most `patience` seconds; return whether it has."""
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
            # Check only the nearest turn until it is over: if many processes check all, they disturb the measurement.
            while left > 0 and _is_held(before[-1]):
                time.sleep(pause)
                left = end - time.monotonic()

    def end(self) -> None:
        """End the turn, so that the next one can begin. Idempotent."""
        if self._lock < 0:
            return
        with contextlib.suppress(OSError), _locked(self._folder):
            for path in (self._path, self._folder / _NEW):
                path.unlink(missing_ok=True)
            self._folder.rmdir()  # fails unless this was the last turn
        fork_inheritance.descriptors.discard(self._lock)
        os.close(self._lock)
        self._lock = -1


def listed(root: Path) -> list[tuple[str, int]]:
    """Return (device, pid) of each turn in order, whether it is under way or waits."""
    return [(device, _pid(path)) for _, device, path in _turns(root / _FOLDER) if _is_held(path)]


def of_others(root: Path, but: int = 0) -> list[Path]:
    """Return the turns of all processes except `but`, whether under way or waiting. See `is_over`."""
    return [path for _, _, path in _turns(root / _FOLDER) if _is_held(path) and _pid(path) != but]


def is_over(turn: Path) -> bool:
    """Return whether a turn of `of_others` has ended."""
    return not _is_held(turn)


def sweep(root: Path) -> None:
    """Remove the turns of dead processes, and the directory if no turn is left. Never raises."""
    folder = root / _FOLDER
    if not folder.exists():
        return
    with contextlib.suppress(OSError), _locked(folder):
        for _, _, path in _turns(folder):
            if not _is_held(path):
                path.unlink(missing_ok=True)
        (folder / _NEW).unlink(missing_ok=True)  # the lock is held while this file has a live owner
        folder.rmdir()


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
    """Return whether a living process holds a turn. Remove the turn if no process holds it."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        # A shared lock, so that two processes that look at once do not mistake each other for the holder.
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
    """Create the folder and lock it, again if it was removed during the wait for the lock. Raises OSError."""
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
