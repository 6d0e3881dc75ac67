"""Decides whether to ask a remote cache, and how long it may take. A state machine without clock or network.

              failed, too slow in total, or bad values               probe_due
    closed ────────────────────────────────────────────▶ open ─────────────────▶ half_open
      ▲                                                   ▲                          │
      └───────────────────── probed(True) ────────────────┴──── probed(False) ◀──────┘

Unless the breaker is closed, no compile waits for the remote; a probe in the background tests whether it is back. So a
remote that is down costs a program one delay, not one per graph. A slow remote costs no more: the time that misses take
beyond an ordinary lookup adds up, and the breaker opens before the sum reaches the delay. A hit resets the sum.
"""

from __future__ import annotations

import enum

__all__ = ["FIRST_PAUSE", "LONGEST_PAUSE", "MOST_BAD_VALUES", "Breaker", "State"]

#: Seconds before an open breaker's remote is probed; they double while it stays bad.
FIRST_PAUSE = 5.0
LONGEST_PAUSE = 300.0
#: Values in a row that don't verify, after which the remote is left alone.
MOST_BAD_VALUES = 3
# The part of the delay that a look may take without being called slow.
_ORDINARY = 0.25


class State(enum.Enum):
    """Whether the remote is asked."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """The account of one remote. `delay` is how many seconds it may cost; times are seconds of any one clock."""

    def __init__(self, delay: float) -> None:
        self.state = State.CLOSED
        self._delay = delay
        self._pause = FIRST_PAUSE
        self._until = 0.0
        self._spent = 0.0
        self._bad = 0

    def allowance(self) -> float:
        """Return how many seconds a lookup may take now; 0 means not to ask the remote."""
        return self._delay - self._spent if self.state is State.CLOSED else 0.0

    def hit(self) -> None:
        """Record a lookup that returned an entry."""
        self._spent, self._bad, self._pause = 0.0, 0, FIRST_PAUSE

    def missed(self, now: float, seconds: float) -> None:
        """Record a miss that took `seconds`."""
        self._spent += max(0.0, seconds - _ORDINARY * self._delay)
        # The remaining time must be enough for an ordinary lookup.
        if self._spent > (1 - _ORDINARY) * self._delay:
            self._open(now)

    def bad_value(self, now: float) -> None:
        """Record a value that did not verify."""
        self._bad += 1
        if self._bad >= MOST_BAD_VALUES:
            self._open(now)

    def failed(self, now: float) -> None:
        """Record that the remote did not answer in time, or answered wrongly."""
        self._open(now)

    def probe_due(self, now: float) -> bool:
        """Return whether the caller is to probe the remote, and tell the result by `probed`. True for one caller."""
        if self.state is not State.OPEN or now < self._until:
            return False
        self.state = State.HALF_OPEN
        return True

    def probed(self, now: float, answered: bool) -> None:
        """Take the result of a probe."""
        if self.state is not State.HALF_OPEN:
            return
        self.state = State.CLOSED
        if answered:
            self._spent, self._bad = 0.0, 0
        else:
            self._open(now)

    def seconds_to_probe(self, now: float) -> float:
        """Return how long to wait for the next probe; 0 if none is to come or it is due."""
        return max(0.0, self._until - now) if self.state is State.OPEN else 0.0

    def _open(self, now: float) -> None:
        if self.state is not State.CLOSED:
            return
        self.state = State.OPEN
        self._until = now + self._pause
        self._pause = min(LONGEST_PAUSE, 2 * self._pause)
