"""The result of `measure`: the times, and how reliable they are."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fxpool import quantities
from fxpool.bench.measurement.surroundings import Surroundings
from fxpool.results import markup

__all__ = ["Measurement", "in_seconds"]

Trust = Literal["good", "doubtful"]


@dataclass(frozen=True, repr=False)
class Measurement:
    """Seconds per call of a function.

    `samples` are in the order of time, each the mean of `calls` calls. `median` is their median; `low` and `high` are
    the 95 % confidence interval of the median. `warm_up` is the time of the first call in seconds, compiling included.
    `copies` is the number of copies of the inputs, used in turn (1: every call had the same input). `waited` is the
    time spent waiting for other measurements, in seconds. `timer` is ``clock``, or ``profiler`` (seconds of kernels or
    operators, at most those by the clock). `surroundings` has a record for each time the measurement lock was held.
    `remarks` are reasons to doubt the times, each with its cause and the way to avoid it; without remarks, `trust` is
    ``"good"``.
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
        """Half the interval's width, relative to the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0

    def __str__(self) -> str:
        samples = f"{len(self.samples)} x {quantities.counted(self.calls, 'call')}"
        text = f"{in_seconds(self.median)} ({in_seconds(self.low)} - {in_seconds(self.high)}, {samples}"
        return f"{text}; {'; '.join(self.remarks)})" if self.remarks else f"{text})"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = {
            "95 % interval": f"{in_seconds(self.low)} - {in_seconds(self.high)}",
            "samples": f"{len(self.samples)}, each of {quantities.counted(self.calls, 'call')}",
            "device": self.device,
            "timer": self.timer,
            "first call": in_seconds(self.warm_up),
            "trust": ": ".join(filter(None, (self.trust, "; ".join(self.remarks)))),
        }
        return markup.block(f"{in_seconds(self.median)} per call", markup.table(list(rows.items())))

    def facts(self) -> dict[str, Any]:
        """Return the measurement as plain data, for a file."""
        return vars(self) | {"trust": self.trust, "surroundings": [asdict(period) for period in self.surroundings]}


def in_seconds(value: float) -> str:
    """Format a time in s, ms, us or ns."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size or not value:
            return f"{quantities.digits(value / size)} {unit}"
    return f"{quantities.digits(value / 1e-9)} ns"
