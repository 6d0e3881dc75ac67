"""Numbers over time in bounded memory: when it is full, every second sample is dropped and the interval doubles."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Samples"]

_KEPT = 720


class Samples:
    """Samples of the same names at growing times. A sample within the interval of the one before is passed over."""

    def __init__(self, interval: float, kept: int = _KEPT) -> None:
        self.interval = interval
        #: Counts up whenever samples were dropped: a reader that has some must take all again.
        self.age = 0
        self._kept = kept
        self.taken: list[dict[str, float]] = []

    def add(self, at: float, values: Mapping[str, float]) -> bool:
        """Keep a sample taken at `at`; return whether it was kept."""
        if self.taken and at < self.taken[-1]["at"] + self.interval:
            return False
        self.taken.append({"at": at, **values})
        if len(self.taken) > self._kept:
            self.taken = self.taken[::2]
            self.interval *= 2
            self.age += 1
        return True

    def since(self, at: float) -> list[dict[str, float]]:
        """Return the samples taken after `at`."""
        return [sample for sample in self.taken if sample["at"] > at]
