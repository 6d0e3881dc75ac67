"""Long work that lets other threads run."""

from __future__ import annotations

import random
import threading
import time

import pytest

from fxpool.codecache.store import pace


def test_each_element_once_in_order_and_sleeps_between(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = 0.0, []

    def sleep(seconds: float) -> None:
        slept.append(now)

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(pace, "_turn", threading.local())
    found = []
    for item in pace.paced(range(10)):
        found.append(item)
        now += 0.0004
    for item in pace.paced(range(10, 12)):  # the time of many short iterators counts together
        found.append(item)
        now += 0.0004
    assert found == list(range(12))
    assert slept == pytest.approx([0.0012, 0.0024, 0.0036, 0.0048])


@pytest.mark.parametrize("number", [0, 1, 999, 1000, 1001, 3500])
def test_sorting_is_stable(number: int) -> None:
    rng = random.Random(number)
    items = [(rng.randrange(50), n) for n in range(number)]

    def key(item: tuple[int, int]) -> int:
        return item[0]

    assert list(pace.paced_sort(items, key, pace.unpaced)) == sorted(items, key=key)
    assert list(pace.paced_sort(iter(items), key, pace.paced)) == sorted(items, key=key)


def test_what_is_released_is_empty() -> None:
    some, other = [[n] for n in range(2500)], {n: [n] for n in range(2500)}
    pace.release(some, other, [], {})
    assert some == [] and other == {}
