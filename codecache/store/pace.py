"""Lets other threads of a process run while one thread does long work.

Threads of CPython share the GIL. A thread that only computes holds it for 5 ms, and a thread that reads files has to
reacquire it after every system call: about twenty times per lookup. A lookup takes 0.2 ms on its own, and took 100 ms
beside a thread that planned an eviction (bench/store.py). So long work is done in short pieces, with sleeps in between
that are long enough for a whole lookup.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

__all__ = ["Pace", "paced", "paced_sort", "release", "unpaced"]

#: Seconds of work between two sleeps, and of a sleep.
_WORK = 0.001
_SLEEP = 0.001
#: Elements that are sorted or freed at a time. This takes less than a millisecond, in which no other thread runs.
_AT_ONCE = 1000
T = TypeVar("T")
_turn = threading.local()  # `begun`: when this thread slept last; a piece of work may go through many iterators


class Pace(Protocol):
    """Iterates as `iter` does, and may sleep between two elements."""

    def __call__(self, items: Iterable[T], /) -> Iterator[T]: ...


def unpaced(items: Iterable[T]) -> Iterator[T]:
    """Iterate without sleeps."""
    return iter(items)


def paced(items: Iterable[T]) -> Iterator[T]:
    """Iterate; sleep for a millisecond after each millisecond of work between elements."""
    for item in items:
        yield item
        if time.perf_counter() - getattr(_turn, "begun", 0.0) > _WORK:
            time.sleep(_SLEEP)
            _turn.begun = time.perf_counter()


def paced_sort(items: Iterable[T], key: Callable[[T], Any], pace: Pace) -> Iterator[T]:
    """Return the items sorted by `key`. The sort is stable."""
    ordered: list[list[T]] = []
    some: list[T] = []
    for item in pace(items):
        some.append(item)
        if len(some) == _AT_ONCE:
            ordered.append(sorted(some, key=key))
            some = []
    ordered.append(sorted(some, key=key))
    return pace(heapq.merge(*ordered, key=key))


def release(*containers: list[Any] | dict[Any, Any]) -> None:
    """Empty containers piece by piece, because freeing a hundred thousand objects at once takes 40 ms."""
    for container in containers:
        if isinstance(container, list):
            for _ in paced(range(0, len(container), _AT_ONCE)):
                del container[-_AT_ONCE:]
        else:
            for _ in paced(range(len(container))):
                container.popitem()
