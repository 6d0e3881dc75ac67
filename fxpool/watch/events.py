"""What is going on, for whoever watches: where each graph is, and what took how long.

    backend, background, jobs ──▶ `state`, `span` ──▶ listeners: `fxpool.watch.display`, `fxpool.watch.trace`

Times are `time.monotonic()`: on Linux one clock for all processes of a host, so what workers and servers report needs
no translation. Without a listener nothing is made of an event.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fxpool import forks, notices

__all__ = ["Listener", "Span", "State", "exchange", "listen", "listening", "span", "state", "tell", "unlisten"]

log = notices.logger(__name__)

#: where a graph may be, in the order in which it usually gets there
STATES = ("queued", "compiling", "loading", "ready", "eager", "failed")


@dataclass(frozen=True)
class State:
    """A graph is in one of `STATES` now. `detail` says more in words; `stage` counts progressive stages from 0."""

    at: float
    graph: str
    state: str
    detail: str = ""
    stage: int = 0


@dataclass(frozen=True)
class Span:
    """Something took from `begin` to `end`, in a thread of a process of this host.

    `overlapping`: others of the same thread may begin in it and end after it (jobs that wait in a queue).
    """

    name: str
    begin: float
    end: float
    pid: int
    thread: int
    role: str = ""  # what the process is, where it is not the one that says so
    overlapping: bool = False
    facts: Mapping[str, object] = field(default_factory=dict)


class Listener(Protocol):
    def on_state(self, event: State) -> None: ...

    def on_span(self, event: Span) -> None: ...


_listeners: tuple[Listener, ...] = ()
_lock = forks.lock(__name__, "_lock")


def listen(listener: Listener) -> None:
    """Tell `listener` everything from now on, in the thread in which it happens. One that raises is told no more."""
    global _listeners
    with _lock:
        _listeners = (*_listeners, listener)


def unlisten(listener: Listener) -> None:
    """Tell `listener` nothing any more. Nothing happens if it was not told."""
    global _listeners
    with _lock:
        _listeners = tuple(one for one in _listeners if one is not listener)


def listening() -> bool:
    """Whether anybody is told, so that facts are worth collecting."""
    return bool(_listeners)


def exchange(old: Collection[Listener], new: Iterable[Listener]) -> None:
    """Tell those of `new` from now on, and none of `old` any more, with no event between the two."""
    global _listeners
    with _lock:
        _listeners = (*(one for one in _listeners if one not in old), *new)


def state(graph: str, name: str, detail: str = "", *, stage: int = 0, at: float | None = None) -> None:
    """Say where a graph is, now or since `at`."""
    if _listeners:
        event = State(time.monotonic() if at is None else at, graph, name, detail, stage)
        for listener in _listeners:
            with _dropped_if_it_raises(listener):
                listener.on_state(event)


def span(name: str, begin: float, end: float, **facts: object) -> None:
    """Say what this thread did from `begin` to `end`."""
    if _listeners:
        tell(Span(name, begin, end, os.getpid(), threading.get_native_id(), facts=facts))


def tell(event: Span) -> None:
    """Pass on what another process did."""
    for listener in _listeners:
        with _dropped_if_it_raises(listener):
            listener.on_span(event)


@contextlib.contextmanager
def _dropped_if_it_raises(listener: Listener) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        unlisten(listener)
        log.warning("%s ends here: %s", getattr(listener, "what", type(listener).__name__), error)
