"""Statistics of samples: their median, its interval, drift, and whether more samples are needed. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Estimate", "drifts", "enough", "estimate"]

#: The share of measurements whose interval contains the true median, if samples are independent.
CONFIDENCE = 0.95
# Fewer samples have no such interval: it would lie beyond the smallest and the largest sample.
_LEAST = 6


@dataclass(frozen=True)
class Estimate:
    """A median of samples and its interval, in the samples' unit.

    `low` and `high` are order statistics (the interval of the sign test), so they assume no distribution.
    """

    median: float
    low: float
    high: float
    count: int

    @property
    def precision(self) -> float:
        """Half the interval's width, relative to the median; infinite without an interval or for a median of 0."""
        if self.count < _LEAST or not self.median:
            return math.inf
        return (self.high - self.low) / 2 / abs(self.median)


def estimate(samples: Sequence[float]) -> Estimate:
    """Return the median and its interval: from the smallest to the largest sample if there are fewer than six.

    Raises ValueError without samples.
    """
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    rank = _rank(len(ordered))
    return Estimate(statistics.median(ordered), ordered[rank], ordered[-1 - rank], len(ordered))


def _rank(count: int) -> int:
    """Return the rank of the interval's ends, counted from either end of the sorted samples.

    It is the largest rank that the median lies beyond with a probability of at most (1 - CONFIDENCE) / 2.
    """
    allowed = (1 - CONFIDENCE) / 2
    below, rank = 0.0, 0
    if count > 500:  # the exact sum would exceed the range of floats
        return max(0, math.floor(count / 2 - statistics.NormalDist().inv_cdf(1 - allowed) * math.sqrt(count) / 2))
    for number in range(count // 2):
        below += math.comb(count, number) / 2**count
        if below > allowed:
            break
        rank = number
    return rank


def enough(samples: Sequence[float], precision: float, least: int) -> bool:
    """Return whether there are at least `least` samples, and the median is known to `precision`."""
    return len(samples) >= max(least, _LEAST) and estimate(samples).precision <= precision


def drifts(samples: Sequence[float]) -> float:
    """Return the relative change of the median from the first half of the samples to the second.

    Returns 0.0 if the change may be chance, that is, if the intervals of the halves overlap.
    """
    half = len(samples) // 2
    if half < _LEAST:
        return 0.0
    first, second = estimate(samples[:half]), estimate(samples[half:])
    apart = first.high < second.low or second.high < first.low
    return (second.median - first.median) / first.median if apart and first.median else 0.0
