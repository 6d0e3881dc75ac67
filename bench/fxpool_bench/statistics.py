"""Speed-ups and changes with their intervals, by the bootstrap. Pure: the same input gives the same output."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Ratio", "ratio"]

_ROUNDS = 1000
_CONFIDENCE = 0.95
# Of more samples a part is drawn: beyond, rounds take long and intervals hardly change.
_MOST = 400


@dataclass(frozen=True)
class Ratio:
    """A ratio of two medians, with the interval that holds the true one in 95 of 100 cases."""

    value: float
    low: float
    high: float

    def differs(self, by: float = 0.0) -> bool:
        """Return whether it is off 1 by more than `by`, and by more than chance."""
        return self.low > 1 + by or self.high < 1 - by


def ratio(above: Sequence[Sequence[float]], below: Sequence[Sequence[float]]) -> Ratio:
    """Return the ratio of the medians of two sets of runs, each run being its samples.

    A round of the bootstrap draws runs, and samples of those it drew: with several runs of each, what differs from
    process to process is in the interval; with one, only what differs from call to call is. Raises ValueError: a set is
    empty, or one of its runs.
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
