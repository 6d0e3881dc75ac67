"""The arithmetic of samples, against known properties."""

from __future__ import annotations

import math
import random

import pytest

from fxpool.bench.measurement import statistics, timing


def test_the_median_and_its_interval() -> None:
    # Of ten independent samples the second and the ninth hold the median with 97.9 %; the third and eighth with 89.
    found = statistics.estimate([float(number) for number in range(10, 0, -1)])
    assert (found.median, found.low, found.high, found.count) == (5.5, 2.0, 9.0, 10)
    assert found.precision == 3.5 / 5.5


def test_few_samples_have_no_precision() -> None:
    found = statistics.estimate([3.0, 1.0, 2.0])
    assert (found.median, found.low, found.high) == (2.0, 1.0, 3.0)
    assert found.precision == math.inf
    assert not statistics.enough([1.0] * 5, 0.5, 1)
    with pytest.raises(ValueError, match="no samples"):
        statistics.estimate([])


@pytest.mark.parametrize("count", [6, 11, 40, 499, 501, 2000])
def test_the_interval_holds_the_median_as_often_as_it_says(count: int) -> None:
    """Skewed, as times are; 95 % or a little more, as ranks are whole numbers."""
    draw = random.Random(count)
    rounds = 2000 if count < 1000 else 600
    held = 0
    for _ in range(rounds):
        found = statistics.estimate([draw.lognormvariate(0.0, 1.0) for _ in range(count)])
        held += found.low <= 1.0 <= found.high
    assert 0.91 <= held / rounds <= (0.985 if count >= 40 else 1.0)


def test_equal_samples_are_enough_once_there_are_so_many() -> None:
    assert not statistics.enough([1.0] * 9, 0.01, 10)
    assert statistics.enough([1.0] * 10, 0.01, 10)
    assert not statistics.enough([1.0, 2.0] * 10, 0.01, 10)


def test_drift_is_told_from_noise() -> None:
    draw = random.Random(0)
    noise = [draw.gauss(1.0, 0.05) for _ in range(200)]
    assert statistics.drifts(noise) == 0.0
    slower = [value * (1.0 if number < 100 else 1.2) for number, value in enumerate(noise)]
    assert statistics.drifts(slower) == pytest.approx(0.2, abs=0.03)
    assert statistics.drifts([1.0, 2.0] * 2) == 0.0


def test_a_drift_is_said_in_words() -> None:
    said = [timing._compared(1 + drift) for drift in (93.08, 1.0, 0.25, 0.034, -0.034, -0.255)]
    assert said == [
        "94 times as long", "2 times as long", "25 % more time", "3.4 % more time", "3.4 % less time", "26 % less time"
    ]  # fmt: skip
