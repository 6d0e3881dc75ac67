"""Speed-ups and changes with bootstrap intervals. Pure: the same input gives the same output."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Ratio", "ratio"]

_ROUNDS = 1000
_CONFIDENCE = 0.95
# The largest number of samples to draw from a run: more samples take long and hardly change the intervals.
_MOST = 400


@dataclass(frozen=True)
class Ratio:
    """A ratio of two medians, with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def differs(self, by: float = 0.0) -> bool:
        """Return whether the whole interval differs from 1 by more than `by`."""
        return self.low > 1 + by or self.high < 1 - by


def ratio(above: Sequence[Sequence[float]], below: Sequence[Sequence[float]]) -> Ratio:
    """Return the ratio of the medians of two sets of runs; each run is a sequence of samples.

    A round of the bootstrap draws runs, and then samples from them. With several runs, the interval includes the
    variation between processes; with a single run, only the variation between calls. Raises ValueError if a set or one
    of its runs is empty.
    """
    if not above or not below or not all(above) or not all(below):
        raise ValueError("there are no samples")
    draw = random.Random(0)

    def median(runs: Sequence[Sequence[float]]) -> float:
        return statistics.median(statistics.median(run) for run in runs)

    def again(runs: Sequence[Sequence[float]]) -> list[list[float]]:
        return [draw.choices(run, k=min(len(run), _MOST)) for run in draw.choices(runs, k=len(runs))]

    rounds = sorted(median(again(above)) / max(median(again(below)), 1e-30) for _ in range(_ROUNDS))
    tail = round(_ROUNDS * (1 - _CONFIDENCE) / 2)
    return Ratio(median(above) / max(median(below), 1e-30), rounds[tail], rounds[-1 - tail])
