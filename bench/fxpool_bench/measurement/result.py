"""What `measure` returns: the times, and how far they can be believed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from fxpool.bench.measurement.surroundings import Surroundings

__all__ = ["Measurement"]

Trust = Literal["good", "doubtful"]


@dataclass(frozen=True)
class Measurement:
    """Seconds per call of one function.

    `samples`: each the mean of `calls` calls, in the order taken. `median`, `low`, `high`: their median, and the
    interval that holds the true one in 95 of 100 measurements. `warm_up`: seconds of the first call, compiling
    included. `copies`: of the inputs, taken in turn (1: every call had the same). `waited`: seconds for others who
    measured. `timer`: ``clock``, or ``profiler`` (seconds of kernels, or of operators). `surroundings`: one record for
    each turn. `remarks`: what speaks against the times, in words; without any
    the `trust` is ``"good"``.
    """

    samples: list[float]
    median: float
    low: float
    high: float
    calls: int
    device: str
    copies: int = 1
    warm_up: float = 0.0
    waited: float = 0.0
    surroundings: list[Surroundings] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    timer: str = "clock"

    @property
    def trust(self) -> Trust:
        return "doubtful" if self.remarks else "good"

    @property
    def precision(self) -> float:
        """Half the interval's width, as a part of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0

    def __str__(self) -> str:
        text = f"{_time(self.median)} ({_time(self.low)} - {_time(self.high)}, {len(self.samples)} x {self.calls} calls"
        return f"{text}; {'; '.join(self.remarks)})" if self.remarks else f"{text})"

    def facts(self) -> dict[str, Any]:
        """Return it as plain data, for a file."""
        return {
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "calls": self.calls,
            "samples": list(self.samples),
            "device": self.device,
            "timer": self.timer,
            "copies": self.copies,
            "warm_up": self.warm_up,
            "waited": self.waited,
            "trust": self.trust,
            "remarks": list(self.remarks),
            "surroundings": [one.facts() for one in self.surroundings],
        }


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
