"""One remote cache as the parts of a process share it: its clients and its breaker; and the thread of a part."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from fxpool import counters, forks, notices
from fxpool.codecache.remote.breaker import Breaker
from fxpool.codecache.remote.client import Client

__all__ = ["LINGER", "BackgroundThread", "RemoteAccess"]

#: Seconds without work after which a thread ends.
LINGER = 2.0


class RemoteAccess:
    """Makes clients of one remote, and decides when it is asked. Thread-safe.

    `connect` makes a client whose requests may take so many seconds. `delay` is what the remote may cost, in seconds.
    `breaker` may only be used under `lock`.
    """

    def __init__(
        self, connect: Callable[[float], Client], delay: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.connect, self.delay, self.clock = connect, delay, clock
        self.lock = forks.lock(self, "lock")
        self.breaker = Breaker(delay)

    def allowance(self) -> float:
        """Return how many seconds a caller may wait for the remote now; 0 means not to ask it."""
        with self.lock:
            return self.breaker.allowance()

    def failed(self) -> None:
        """Record a failure that no caller waited for."""
        with self.lock:
            self.breaker.failed(self.clock())

    def settle(
        self, seconds: float, record: Callable[[Breaker, float], None], error: BaseException | None, why: str
    ) -> None:
        """Add the seconds that a caller waited, and `record` the outcome (given the time).

        If the remote is left alone from now on, warn once per reason: `why`, and the `error` if there is one.
        """
        counters.add_seconds("remote_seconds", seconds)
        with self.lock:
            record(self.breaker, self.clock())
            is_asked = bool(self.breaker.allowance())
        if not is_asked:
            counters.count("remote", "left_alone")
            notices.once(f"remote:{why}", f"pausing use of the remote cache ({why}): {error or 'no error'}")


class BackgroundThread:
    """A thread with a separate client, for requests that no caller makes itself: started when there is work."""

    def __init__(self, name: str, access: RemoteAccess, seconds: float) -> None:
        self._name, self._access, self._seconds = name, access, seconds
        self._lock = forks.lock(self, "_lock")
        self._more = forks.event()
        self._thread: threading.Thread | None = None
        self._client: Client | None = None
        self._is_closed = False
        self._pid = os.getpid()

    def _step(self) -> bool:
        """Do the work that is due, in the thread; return False if there has been none for a while."""
        raise NotImplementedError

    def _has_work(self) -> bool:
        """Return whether work is left, under the lock."""
        raise NotImplementedError

    def _wake(self) -> None:
        """Have the thread look for work, and start it if there is no thread."""
        with self._lock:
            self._more.set()
            if self._is_closed or self._pid != os.getpid() or (self._thread is not None and self._thread.is_alive()):
                return
            thread = self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends
            self._thread = None

    def _run(self) -> None:
        try:
            while self._step():
                pass
        finally:
            with self._lock:
                client, self._client = self._client, None
                if self._thread is threading.current_thread():
                    self._thread = None
                has_work = self._has_work()
            if client is not None:
                client.close()
            if has_work:  # it came while this thread was about to end
                self._wake()

    def _connected(self) -> Client:
        client = self._client
        if client is None:
            client = self._client = self._access.connect(self._seconds)
        return client

    def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
