"""Leases on graphs: one machine compiles a graph that no machine has compiled, and the others wait for its entry.

    take ──▶ look ──▶ compile ──▶ upload ──▶ release
     │ another holds it
     ▼
    pause, held? ──released or lapsed──▶ look ──▶ take
     │ patience is over, or the remote fails
     ▼
    compile without a lease

A lease is renewed while its graph is compiled and uploaded. Without renewals it lapses after `PERIOD` seconds: by the
server's expiry in Redis, and in S3 by the clock of the machine that waits. Clocks of machines are never compared.

A background thread makes all requests, so that a caller waits no longer than the breaker allows. A lease only spares
work: after any failure, the caller compiles.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

from fxpool import counters, forks, interruptions, notices
from fxpool.codecache.remote import remote_values
from fxpool.codecache.remote.access import LINGER, BackgroundThread, RemoteAccess
from fxpool.codecache.remote.breaker import Breaker
from fxpool.codecache.remote.client import Client, Deadline, RemoteError

__all__ = ["AT_EXIT", "MOST_IN_VAIN", "PERIOD", "Lease", "Leases"]

log = notices.logger(__name__)

T = TypeVar("T")

#: Seconds after which a lease lapses unless it is renewed.
PERIOD = 10.0
#: Seconds that the end of a process may take longer for releases.
AT_EXIT = 0.1
#: Waits in a row that brought no entry, after which this process waits for no other machine.
MOST_IN_VAIN = 3
# Pauses between two questions whether a lease is still held. They grow, and longer if the answers take long, because
# all graphs of a process ask through one connection.
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.05, 0.5, 1.5
_ANSWERS, _LONGEST_OF_ALL = 10.0, 3.0
# Seconds between two looks whether the uploads before a release are done.
_UPLOAD_PAUSE = 0.05


@dataclass(eq=False)
class Lease:
    """A lease that this process holds, until it is released or garbage. `due` and `lapses` are times of its clock."""

    name: str
    token: str
    due: float
    lapses: float
    after: Collection[str] = ()
    """Keys whose uploads come before the release."""


class Leases(BackgroundThread):
    """The leases of one remote level. Thread-safe.

    `uploading` returns whether entries under any of some keys wait for their upload.
    """

    def __init__(self, access: RemoteAccess, uploading: Callable[[Collection[str]], bool]) -> None:
        super().__init__("fxpool-leases", access, access.delay)
        self._uploading, self._clock = uploading, access.clock
        self._released = forks.event()
        self._questions: deque[_Question] = deque()
        # Weak: an interrupt may keep a caller from releasing its lease, which then lapses.
        self._held: weakref.WeakSet[Lease] = weakref.WeakSet()
        self._ending: list[Lease] = []
        self._in_vain = 0
        self._refused = False
        atexit.register(self.close)

    # ---------------------------------------------------------------- asking

    def wait(
        self, key: str, look: Callable[[], T | None], patience: float, is_ending: Callable[[], bool] = lambda: False
    ) -> tuple[T | None, Lease | None]:
        """Return the result of `look` once that is not None, or else a lease under which to compile.

        Returns (None, None) if the caller is to compile without a lease: the remote failed, or other machines have held
        the lease for `patience` seconds, or `is_ending` returned True. Raises what `look` raises.
        """
        name, is_late = remote_values.lease_name(key), False
        end = self._clock() + (patience if self._in_vain < MOST_IN_VAIN else 0.0)
        try:
            while (lease := self._take(name)) is None:
                is_late = True
                if not self._wait_until_free(name, end, is_ending):
                    if not is_ending():
                        self._in_vain += 1
                        counters.count("leases", "gave_up")
                    return None, None
                # Without a lease: all machines that waited look at the same time.
                if (result := look()) is not None:
                    return self._waited(result), None
        except RemoteError as error:
            log.debug("compiling without a lease: %s", error)
            if is_late:
                counters.count("leases", "gave_up")
            return None, None
        try:
            result = look()  # the holder before may have uploaded its entry since the last look
        except BaseException:
            self.release(lease)
            raise
        if result is not None:
            self.release(lease)
            return (self._waited(result) if is_late else result), None
        counters.count("leases", "taken_over" if is_late else "taken")
        return None, lease

    def _waited(self, result: T) -> T:
        self._in_vain = 0
        counters.count("leases", "waited")
        return result

    def _wait_until_free(self, name: str, end: float, is_ending: Callable[[], bool]) -> bool:
        """Wait until no machine holds a lease; return False if that takes until `end`. Raises RemoteError."""
        pause = _FIRST_PAUSE
        while True:
            start = self._clock()
            if not self._ask(lambda client, deadline: client.is_leased(name, PERIOD, deadline)):
                return True
            now = self._clock()
            pause = min(_LONGEST_PAUSE, pause * _GROWTH)
            if now >= end or is_ending():
                return False
            with interruptions.let_through():
                time.sleep(min(max(pause, _ANSWERS * (now - start)), _LONGEST_OF_ALL, end - now))

    def _take(self, name: str) -> Lease | None:
        """Take a lease; None if another holds it. Raises RemoteError."""
        token, start = os.urandom(16).hex(), self._clock()
        if not self._ask(lambda client, deadline: client.lease(name, token, PERIOD, deadline)):
            return None
        lease = Lease(name, token, due=start + PERIOD / 3, lapses=start + PERIOD)
        with self._lock:
            self._held.add(lease)
            self._released.clear()
        self._wake()
        return lease

    def release(self, lease: Lease, after: Collection[str] = ()) -> None:
        """End a lease in the background, once no entry under the keys `after` waits for its upload. Never raises."""
        lease.after = after
        with self._lock:
            if lease in self._held:
                self._held.discard(lease)
                self._ending.append(lease)
        self._wake()

    def _ask(self, function: Callable[[Client, Deadline], T]) -> T:
        """Return the result of a request, made in the thread. Raises RemoteError, also if the remote is not in use."""
        allowance = self._access.allowance()
        if not allowance or self._refused or self._is_closed:
            raise RemoteError("client", "the remote cache is not in use")
        question = _Question(function, allowance)
        start = self._clock()
        with self._lock:
            self._questions.append(question)
        self._wake()
        with interruptions.let_through():
            in_time = question.over.wait(allowance)
        error = question.error if in_time else RemoteError("timeout")
        self._settle(error, self._clock() - start)
        if error is not None:
            raise error
        result: T = question.result
        return result

    def _settle(self, error: RemoteError | None, seconds: float) -> None:
        """Have the breaker know how a request went. Rights that allow no leases are no reason to leave the remote."""

        def record(breaker: Breaker, now: float) -> None:
            if error is None:
                breaker.missed(now, seconds)
            elif error.reason != "answer":
                breaker.failed(now)

        if error is not None:
            counters.count("remote", f"error:lease_{error.reason}")
            self._refused |= error.reason == "answer"
        self._access.settle(seconds, record, error, "it is slow" if error is None else error.reason)

    # ---------------------------------------------------------------- ending

    def close(self) -> None:
        """Release all leases, as far as that is done in a moment; the others lapse."""
        atexit.unregister(self.close)
        if self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        with self._lock:
            self._ending += self._held
            self._held.clear()
            is_running = self._thread is not None and bool(self._ending)
        self._more.set()
        if is_running:
            self._released.wait(AT_EXIT)

    # ---------------------------------------------------------------- the thread

    def _has_work(self) -> bool:
        return bool(self._questions or self._held or self._ending)

    def _step(self) -> bool:
        with self._lock:
            self._more.clear()
            question = self._questions.popleft() if self._questions else None
            held, ending = list(self._held), list(self._ending)
        self._attend(held, ending)
        if question is not None:
            question.answer(self._connected)
            if question.error is not None:
                self._drop_client()
            return True
        held.clear()  # no reference while this thread waits
        with self._lock:
            due = [lease.due for lease in [*self._held, *self._ending]]
            is_ending = bool(self._ending)
        if not due:
            self._released.set()
            return not self._is_closed and self._more.wait(LINGER)
        pause = max(0.0, min(due) - self._clock())
        self._more.wait(min(pause, _UPLOAD_PAUSE) if is_ending else pause)
        return True

    def _attend(self, held: list[Lease], ending: list[Lease]) -> None:
        for lease in ending:
            if self._is_closed or not self._uploading(lease.after):
                self._end(lease)
        for lease in [*held, *ending]:
            if lease.due <= self._clock() and (lease in self._held or lease in self._ending):
                self._renew(lease)

    def _renew(self, lease: Lease) -> None:
        now = self._clock()
        lease.due = now + PERIOD / 3
        renewed = self._request(lambda client, deadline: client.renew(lease.name, lease.token, PERIOD, deadline))
        if renewed:
            lease.lapses = now + PERIOD
        elif renewed is False or now >= lease.lapses:
            log.info("a lease was lost, and another machine may compile the same graph")
            counters.count("leases", "lost")
            self._drop(lease)

    def _end(self, lease: Lease) -> None:
        self._drop(lease)
        self._request(lambda client, deadline: client.release(lease.name, lease.token, deadline))

    def _drop(self, lease: Lease) -> None:
        with self._lock:
            self._held.discard(lease)
            if lease in self._ending:
                self._ending.remove(lease)

    def _request(self, function: Callable[[Client, Deadline], bool]) -> bool | None:
        """Make a request that no caller waits for; None if it failed."""
        question = _Question(function, self._access.delay)
        question.answer(self._connected)
        if question.error is None:
            return bool(question.result)
        self._drop_client()
        counters.count("remote", f"error:lease_{question.error.reason}")
        if question.error.reason == "answer":
            self._refused = True
        else:
            self._access.failed()
        return None


class _Question:
    """A request that the thread is to make, and its outcome."""

    def __init__(self, function: Callable[[Client, Deadline], Any], seconds: float) -> None:
        self._function, self._deadline = function, Deadline(seconds)
        self.over = forks.event()
        self.result: Any = None
        self.error: RemoteError | None = None

    def answer(self, connected: Callable[[], Client]) -> None:
        try:
            self._deadline.left()
            self.result = self._function(connected(), self._deadline)
        except RemoteError as error:
            self.error = error
        except BaseException as error:  # a panic inside a client must not end the thread
            log.debug("a request for a lease failed", exc_info=True)
            self.error = RemoteError("client", type(error).__name__)
        finally:
            self.over.set()
