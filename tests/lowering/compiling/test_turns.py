"""Estimates of how long a compile takes, which limit the wait for another machine."""

from __future__ import annotations

from fxpool.lowering.compiling import graph_leases


def test_patience_is_twice_the_longest_of_the_last_compiles() -> None:
    durations = graph_leases._Durations()
    assert durations.patience() == 30.0
    durations.add(0.5)
    assert durations.patience() == 30.0, "a small graph says nothing about the next one"
    durations.add(80.0)
    assert durations.patience() == 160.0
    for _ in range(40):
        durations.add(17.0)
    assert durations.patience() == 34.0
