"""The arithmetic of samples: their median, its interval, drift, and whether more are needed. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Estimate", "drifts", "enough", "estimate"]

#: The interval holds the true median in this part of all measurements, if samples are independent.
CONFIDENCE = 0.95
# An order statistic beyond the ends of a short row does not exist: fewer samples have no such interval.
_LEAST = 6


@dataclass(frozen=True)
class Estimate:
    """A median of samples and its interval, in the samples' unit.

    `low` and `high` are order statistics (the sign test's interval), so nothing is assumed of how samples are spread.
    """

    median: float
    low: float
    high: float
    count: int

    @property
    def precision(self) -> float:
        """Half the interval's width, as a part of the median; infinite without an interval or for a median of 0."""
        if self.count < _LEAST or not self.median:
            return math.inf
        return (self.high - self.low) / 2 / abs(self.median)


def estimate(samples: Sequence[float]) -> Estimate:
    """Return the median and its interval. With fewer than six samples the interval is from the least to the largest.

    Raises ValueError without samples.
    """
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    rank = _rank(len(ordered))
    return Estimate(statistics.median(ordered), ordered[rank], ordered[-1 - rank], len(ordered))


def _rank(count: int) -> int:
    """How far from each end the interval's ends are: the largest rank that the median is beyond with (1 - C) / 2."""
    allowed = (1 - CONFIDENCE) / 2
    below, rank = 0.0, 0
    if count > 500:  # the exact sum would run into numbers that floats do not hold
        return max(0, math.floor(count / 2 - statistics.NormalDist().inv_cdf(1 - allowed) * math.sqrt(count) / 2))
    for number in range(count // 2):
        below += math.comb(count, number) / 2**count
        if below > allowed:
            break
        rank = number
    return rank


def enough(samples: Sequence[float], precision: float, least: int) -> bool:
    """Return whether the median is known to `precision`, by at least so many samples."""
    return len(samples) >= max(least, _LEAST) and estimate(samples).precision <= precision


def drifts(samples: Sequence[float]) -> float:
    """Return by which part of the median the second half's median is off the first half's, if that is no chance.

    0.0 if it may be: the intervals of the halves have values in common.
    """
    half = len(samples) // 2
    if half < _LEAST:
        return 0.0
    first, second = estimate(samples[:half]), estimate(samples[half:])
    apart = first.high < second.low or second.high < first.low
    return (second.median - first.median) / first.median if apart and first.median else 0.0
