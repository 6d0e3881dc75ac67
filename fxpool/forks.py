"""Locks that survive no fork held: a child has one thread, and waits for ever for what another of its parent's held.

    self._lock = forks.lock(self, "_lock")      where it is kept is told, so that a child gets a new one there
    _lock = forks.rlock(__name__, "_lock")      the same for a module
    over = forks.event()                        an event of which the child has its own, set if it was
    with forks.held_off(): ...                  around what can't be mended in a child: nobody forks meanwhile

What a lock guards may be half made when another thread held it: `reset` is called for that in the child, when all locks
are new. Every lock and event of fxpool's is made here; a test looks for others. Forks that do not go through Python are
not seen. Imports nothing of ours.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["Event", "event", "held_off", "lock", "rlock"]


@dataclass(frozen=True)
class _Place:
    """Where a lock is kept: an attribute of an object, or of the module of a name."""

    owner: weakref.ref[Any] | str
    name: str
    make: Callable[[], Any]
    reset: Callable[[], object] | None

    def renew(self) -> Callable[[], object] | None:
        """Put a new lock there; what is to be called for one that another thread held."""
        owner = sys.modules.get(self.owner) if isinstance(self.owner, str) else self.owner()
        before = getattr(owner, self.name, None)
        if owner is None or before is None:
            return None
        # Whoever forked and holds it releases that one on the way out. Locks of C's own, with nothing of Python's
        # between: an interrupt there would leave them held.
        setattr(owner, self.name, self.make())
        return None if before.acquire(False) else self.reset


# A dictionary, whose single operations no fork comes between.
_places: dict[tuple[object, str], _Place] = {}
_events: dict[int, weakref.ref[Event]] = {}


def lock(owner: object, name: str, reset: Callable[[], object] | None = None) -> threading.Lock:
    """A `threading.Lock` to be kept as attribute `name` of `owner`: an object, or the module that is so called.

    `reset` is called in a child that was forked while a thread held it, to mend what it guards.
    """
    return _kept(owner, name, threading.Lock, reset)  # type: ignore[no-any-return]


def rlock(owner: object, name: str, reset: Callable[[], object] | None = None) -> Any:
    """A `threading.RLock`; as `lock`, but no `reset` is called where the thread that forked held it."""
    return _kept(owner, name, threading.RLock, reset)


def _kept(owner: object, name: str, make: Callable[[], Any], reset: Callable[[], object] | None) -> Any:
    if isinstance(owner, str):
        _places[owner, name] = _Place(owner, name, make, reset)
    else:
        key = (id(owner), name)
        _places[key] = _Place(weakref.ref(owner, lambda _: _places.pop(key, None)), name, make, reset)
    return make()


class Event:
    """`threading.Event`, but for its lock in a forked child."""

    __slots__ = ("__weakref__", "_event")

    def __init__(self) -> None:
        self._event = threading.Event()
        number = id(self)
        _events[number] = weakref.ref(self, lambda _: _events.pop(number, None))

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def wait(self, timeout: float | None = None) -> bool:
        return self._event.wait(timeout)

    def renew(self) -> None:
        before, self._event = self._event, threading.Event()
        if before.is_set():
            self._event.set()


def event() -> Event:
    """An event. In a child it is set if it was; who waited for it is not there."""
    return Event()


# Reentrant: a signal handler may fork.
_forking = threading.RLock()


@contextmanager
def held_off() -> Iterator[None]:
    """Whoever forks this process waits meanwhile. For moments: a process that is being started, or a module that is
    being imported, which in a child would be in the middle of that for ever."""
    with _forking:
        yield


def _in_child() -> None:
    _forking.release()
    for known in list(_events.values()):
        if (one := known()) is not None:
            one.renew()
    resets = [place.renew() for place in list(_places.values())]
    for reset in resets:
        if reset is not None:
            reset()


os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_in_child)
