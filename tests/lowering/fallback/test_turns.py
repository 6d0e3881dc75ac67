"""Estimates of how long a compile takes, which limit the wait for another machine."""

from __future__ import annotations

from fxpool.lowering.fallback import turns


def test_an_estimate_is_the_longest_of_the_last_compiles() -> None:
    durations = turns._Durations()
    assert durations.longest() == 30.0
    durations.add(0.5)
    assert durations.longest() == 5.0, "a moment is too short for anything to come"
    durations.add(80.0)
    assert durations.longest() == 80.0
    for _ in range(40):
        durations.add(7.0)
    assert durations.longest() == 7.0
