"""A simulated clock, and what takes time by it: slots with a queue, numbers of waiting jobs, messages by second."""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Clock", "Gauge", "Messages", "Slots", "Work"]


class Clock:
    """Simulated time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), call))

    def run(self, is_over: Callable[[], bool]) -> None:
        while self._events and not is_over():
            self.now, _, call = heapq.heappop(self._events)
            call()


class Gauge:
    """A number of waiting jobs: its maximum, and its mean over time."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._since, self._area = clock, 0.0, 0.0
        self.value = self.most = 0

    def change(self, by: int) -> None:
        self._area += self.value * (self._clock.now - self._since)
        self._since = self._clock.now
        self.value += by
        self.most = max(self.most, self.value)

    def mean(self) -> float:
        self.change(0)
        return self._area / self._clock.now if self._clock.now else 0.0


class Messages:
    """Messages to and from a server, by second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.by_second: Counter[int] = Counter()

    def count(self, number: int = 1) -> None:
        self.by_second[int(self._clock.now)] += number

    def rates(self) -> tuple[float, int]:
        """Return the mean and the largest number per second."""
        return sum(self.by_second.values()) / max(1.0, self._clock.now), max(self.by_second.values(), default=0)


@dataclass(eq=False)
class Work:
    """A job for a slot. `begin` returns its seconds."""

    begin: Callable[[], float]
    end: Callable[[], None]
    state: str = "waiting"


class Slots:
    """The slots of a host or a machine, and the queue for them."""

    def __init__(self, clock: Clock, number: int, waiting: Gauge) -> None:
        self.number, self.running = number, 0
        self._clock, self._waiting = clock, waiting
        self._queue: deque[Work] = deque()

    @property
    def jobs(self) -> int:
        return self.running + len(self._queue)

    def add(self, work: Work) -> None:
        self._queue.append(work)
        self._waiting.change(1)
        self._fill()

    def drop(self, work: Work) -> bool:
        """End a job, if it has not ended; return whether it was running."""
        before, work.state = work.state, "over"
        if before == "waiting":
            self._queue.remove(work)
            self._waiting.change(-1)
        elif before == "running":
            self.running -= 1
            self._fill()
        return before == "running"

    def _fill(self) -> None:
        while self._queue and self.running < self.number:
            work = self._queue.popleft()
            self._waiting.change(-1)
            self.running += 1
            work.state = "running"
            self._clock.after(work.begin(), functools.partial(self._ended, work))

    def _ended(self, work: Work) -> None:
        if work.state == "running":
            self.drop(work)
            work.end()
