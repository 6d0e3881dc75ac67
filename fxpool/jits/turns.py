"""One builder at a time: the other threads and processes of the host wait, and look for its product when it is done.

    take ──▶ flight: a thread of this process builds the same product? wait for it, and take its result over
         └─▶ lock file: a process of this host does? wait until it is done or dead

The lock of a file is a record lock (POSIX), which the kernel releases when its process ends, however it ends. Children
do not inherit it, so a process that a builder started, and that outlives it, blocks nothing. A child forked during a
build waits for it like any other process; if the builder's own thread forked it, waiting could never end, so that
raises an error.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from fxpool import directories, forks, interruptions, notices
from fxpool.errors import RecursiveBuildError

__all__ = ["Turn", "take"]

log = notices.logger(__name__)

# Pauses between two tries to lock a file. They grow.
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.005, 0.25, 1.4
# Seconds after which a waiting thread looks for exceptions of other threads, and at the clock.
_LOOK = 1.0


@dataclass(eq=False)
class _Flight:
    """A build in this process: its thread, and its result if it is for all threads."""

    thread: int
    over: forks.Event = field(default_factory=forks.event)
    result: Any = None


_lock = forks.lock(__name__, "_lock")
_flights: dict[str, _Flight] = {}


class Turn:
    """A turn to build the product of a key, until `release`; or else, in `result`, what another thread has built.

    `waited`: another builder was at work before. `is_late`: it still is, and the caller's patience is over. `locked`:
    the host's other processes wait, too.
    """

    def __init__(self, key: str, flight: _Flight | None, *, result: Any = None, waited: bool = False) -> None:
        self._key, self._flight, self._pid = key, flight, os.getpid()
        self._path, self._file = "", -1
        self.result, self.waited, self.is_late = result, waited, False

    @property
    def locked(self) -> bool:
        return self._file >= 0

    def lock(self, path: str, deadline: float | None) -> None:
        """Lock a file among the processes of the host; wait until `deadline` (monotonic). Never raises OSError.

        Without the lock (no directory, no locks, or the deadline is over) the caller builds all the same.
        """
        pause = _FIRST_PAUSE
        while not self.is_late:
            try:
                self._file = _locked(path)
            except OSError as error:
                log.info("building without a lock: %s", error)
                return
            if self._file >= 0:
                self._path = path
                return
            self.waited = True
            left = _LONGEST_PAUSE if deadline is None else deadline - time.monotonic()
            if left <= 0:
                self.is_late = True
                return
            with interruptions.let_through():
                time.sleep(min(pause, left))
            pause = min(_LONGEST_PAUSE, pause * _GROWTH)

    def release(self, result: Any = None) -> None:
        """End the turn; `result` is for the threads that wait. Idempotent. Never raises."""
        if self._flight is None or self._pid != os.getpid():  # a child has neither the lock nor the flight
            return
        file, self._file = self._file, -1
        if file >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)  # before it is unlocked: a process that has it open looks again
            os.close(file)
        flight, self._flight = self._flight, None
        flight.result = result
        with _lock:
            if _flights.get(self._key) is flight:
                del _flights[self._key]
        flight.over.set()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be ending
            self.release()


def take(key: str, label: str, deadline: float | None) -> Turn:
    """Return this thread's turn among the threads of the process, or a turn with the `result` of another thread.

    After `deadline` (monotonic), the turn is no longer exclusive. Raises RecursiveBuildError.
    """
    waited = False
    while True:
        mine = _Flight(threading.get_ident())
        turn = Turn(key, mine, waited=waited)  # before it is known to others: an interrupt ends it with this call
        with _lock:
            other = _flights.setdefault(key, mine)
        if other is mine:
            return turn
        if other.thread == mine.thread:
            raise RecursiveBuildError(label)
        turn.waited = waited = True
        while not other.over.is_set():
            left = _LOOK if deadline is None else min(_LOOK, deadline - time.monotonic())
            if left <= 0:
                turn.is_late = True
                return turn
            with interruptions.let_through():
                other.over.wait(left)
        if other.result is not None:
            return Turn(key, None, result=other.result, waited=True)


def _locked(path: str) -> int:
    """Return the descriptor of a locked file; -1 if another process has locked it. Raises OSError."""
    while True:
        directories.make_private(os.path.dirname(path))
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(file)):
                return file
        except FileNotFoundError:
            pass  # its builder has removed it
        except OSError as error:
            os.close(file)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return -1
            raise
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _in_child() -> None:
    """Forget builds of threads that the child lacks; the forking thread's stay, as a call for them is a recursion."""
    me = threading.get_ident()
    for key, flight in list(_flights.items()):
        if flight.thread != me:
            _flights.pop(key, None)


os.register_at_fork(after_in_child=_in_child)
