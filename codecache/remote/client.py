"""The protocol of clients of a remote cache, their deadline, and the only error that they raise."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from fxpool.errors import StoreError

__all__ = ["Client", "Deadline", "RemoteError"]


class RemoteError(StoreError):
    """The remote cache did not do what it was asked. Never leaves the remote level: it is a miss.

    `reason` is counted: ``timeout``, ``unreachable``, ``closed`` (the connection broke), ``answer`` (it said no, or
    something senseless), ``too_large``, ``forked``, ``client`` (an error inside the client).
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        super().__init__(f"the remote cache: {reason}" + (f" ({detail})" if detail else ""))


class Deadline:
    """The time at which a call gives up."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock() + seconds

    def left(self) -> float:
        """Return the seconds left. Raises RemoteError if the deadline has passed."""
        left = self._at - self._clock()
        if left <= 0:
            raise RemoteError("timeout")
        return left


class Client(Protocol):
    """A connection to a remote cache, used by one thread at a time. All methods raise RemoteError."""

    def names(self, index: str, most: int, deadline: Deadline) -> list[str]:
        """Return names that were added to an index, at most `most`."""

    def get(self, name: str, most: int, deadline: Deadline) -> bytes | None:
        """Return a value of at most `most` bytes, None if it does not exist. A larger value is an error."""

    def put(self, name: str, value: bytes, deadline: Deadline, *, replace: bool) -> bool:
        """Store a value unless there is one, or anyway with `replace`; return whether it was stored."""

    def add(self, index: str, name: str, deadline: Deadline) -> None:
        """Add a name to an index, after its value is there."""

    def lease(self, name: str, token: str, seconds: float, deadline: Deadline) -> bool:
        """Take a lease that lapses after `seconds` without renewal, unless another holds it; return whether taken."""

    def is_leased(self, name: str, seconds: float, deadline: Deadline) -> bool:
        """Return whether a lease of `seconds` is held. A client may learn only after so long that it has lapsed."""

    def renew(self, name: str, token: str, seconds: float, deadline: Deadline) -> bool:
        """Prolong the lease with this token; return False if it is lost."""

    def release(self, name: str, token: str, deadline: Deadline) -> bool:
        """End the lease with this token; return False if it was lost before."""

    def close(self) -> None:
        """Drop all connections, also of a call that another thread is in. Never raises."""
