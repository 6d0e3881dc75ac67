"""Locks that work in a forked child, which has one thread and would wait forever for locks of other threads.

    self._lock = forks.lock(self, "_lock")      names its attribute, where a child gets a new lock
    _lock = forks.rlock(__name__, "_lock")      the same for a module
    over = forks.event()                        an event that is renewed in a child and keeps its state
    with forks.held_off(): ...                  no thread forks inside: for state that a child could not repair

Data guarded by a lock may be inconsistent if another thread held it; the lock's `reset` is then called in the child,
after all locks are renewed. All locks and events of fxpool are created here; a test finds others. Forks that do not
go through Python are not handled. Imports no other fxpool module.
"""

from __future__ import annotations

import functools
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
    """The attribute that holds a lock: of an object, or of the module with that name."""

    owner: weakref.ref[Any] | str
    name: str
    make: Callable[[], Any]
    reset: Callable[[], object] | None

    def renew(self) -> Callable[[], object] | None:
        """Replace the lock; return the `reset` to call if another thread held the old lock."""
        owner = sys.modules.get(self.owner) if isinstance(self.owner, str) else self.owner()
        before = getattr(owner, self.name, None)
        if owner is None or before is None:
            return None
        # A lock held by the forking thread is released later by that thread. Locks are implemented in C, without Python
        # code around them, where an interrupt would leave them held.
        setattr(owner, self.name, self.make())
        return None if before.acquire(False) else self.reset


# A dictionary, because a fork cannot interrupt its single operations.
_places: dict[tuple[object, str], _Place] = {}
_events: dict[int, weakref.ref[Event]] = {}


def lock(owner: object, name: str, reset: Callable[[], object] | None = None) -> threading.Lock:
    """Return a `threading.Lock` to store as attribute `name` of `owner`: an object, or the name of a module.

    `reset` is called in a child forked while another thread held the lock, to repair the guarded data.
    """
    return _kept(owner, name, threading.Lock, reset)


def rlock(owner: object, name: str, reset: Callable[[], object] | None = None) -> Any:
    """Return a `threading.RLock`; like `lock`, but `reset` is not called if the forking thread held it."""
    return _kept(owner, name, threading.RLock, reset)


def _kept(owner: object, name: str, make: Callable[[], Any], reset: Callable[[], object] | None) -> Any:
    if isinstance(owner, str):
        _places[owner, name] = _Place(owner, name, make, reset)
    else:
        key = (id(owner), name)
        # Not a Python function, which a signal handler could interrupt: Python drops exceptions of such a callback.
        forget = functools.partial(_places.pop, key)
        _places[key] = _Place(weakref.ref(owner, forget), name, make, reset)
    return make()


class Event:
    """A `threading.Event` whose lock is renewed in a forked child."""

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
        """Replace the event's lock in a forked child."""
        before, self._event = self._event, threading.Event()
        if before.is_set():
            self._event.set()


def event() -> Event:
    """Return an event. It keeps its state in a child, where the threads that waited for it do not exist."""
    return Event()


# Reentrant: a signal handler may fork.
_forking = threading.RLock()


@contextmanager
def held_off() -> Iterator[None]:
    """Delay forks of this process during a ``with`` block. For short operations: starting a process, or importing a
    module (which would stay half imported in a child)."""
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
