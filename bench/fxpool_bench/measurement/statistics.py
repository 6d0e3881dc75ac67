"""Statistics of samples: medians and their intervals, drift, speed-ups, and ratios of pairs.

Pure functions: the same input gives the same output.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Estimate", "Ratio", "drifts", "enough", "estimate", "paired", "ratio"]

#: The share of measurements whose interval contains the true value, if samples are independent.
CONFIDENCE = 0.95
# Fewer samples have no such interval: it would lie beyond the smallest and the largest sample.
_LEAST = 6
_ROUNDS = 1000
# The largest number of samples to draw from a run: more samples take long and hardly change the intervals.
_MOST = 400


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


@dataclass(frozen=True)
class Ratio:
    """A ratio of two medians with its 95 % confidence interval, or of `paired` values with their range."""

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
    tail = round(_ROUNDS * (1 - CONFIDENCE) / 2)
    return Ratio(median(above) / max(median(below), 1e-30), rounds[tail], rounds[-1 - tail])


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return the median of the ratios of pairs, with the lowest and the highest of them.

    The n-th of `ours` is compared with the n-th of `theirs`, which ran right after it. Raises ValueError without pairs.
    """
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"{len(ours)} and {len(theirs)} samples make no pairs")
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))
