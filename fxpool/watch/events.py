"""Events for watchers: states of graphs, and spans of time.

    backend, background, jobs ──▶ `state`, `span` ──▶ listeners: `fxpool.watch.display`, `fxpool.watch.trace`

Times are `time.monotonic()`, which on Linux is one clock for all processes of a host, so times reported by workers and
servers need no conversion. Without a listener, an event costs nothing.
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

__all__ = [
    "Listener", "Span", "State", "exchange", "listen", "listening", "release", "span", "state", "tell", "unlisten",
]  # fmt: skip

log = notices.logger(__name__)

#: The states of a graph, in the usual order.
STATES = ("queued", "compiling", "loading", "ready", "eager", "failed")


@dataclass(frozen=True)
class State:
    """A graph's new state, one of `STATES`. `detail` explains it; `stage` counts progressive stages from 0.

    `facts` of a last state (``ready``, ``eager``, ``failed``): `outcome`, `level`, `key` and `reasons`, as in the
    records of ``fxpool.stats()["graphs"]``.
    """

    at: float
    graph: str
    state: str
    detail: str = ""
    stage: int = 0
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Span:
    """A span from `begin` to `end`, in a thread of a process of this host.

    `overlapping`: others of the same thread may begin within it and end after it (jobs that wait in a queue).
    """

    name: str
    begin: float
    end: float
    pid: int
    thread: int
    role: str = ""  # the process's role, if it is another than the reporting one
    overlapping: bool = False
    facts: Mapping[str, object] = field(default_factory=dict)


class Listener(Protocol):
    """Receives events in the thread in which they happen."""

    def on_state(self, event: State) -> None: ...

    def on_span(self, event: Span) -> None: ...


_listeners: tuple[Listener, ...] = ()
_lock = forks.lock(__name__, "_lock")


def listen(listener: Listener) -> None:
    """Call `listener` for every event from now on, in the event's thread. A listener that raises is removed."""
    global _listeners
    with _lock:
        _listeners = (*_listeners, listener)


def unlisten(listener: Listener) -> None:
    """Remove `listener`. No-op if it is not there."""
    global _listeners
    with _lock:
        _listeners = tuple(one for one in _listeners if one is not listener)


def listening() -> bool:
    """Return whether there is a listener, so that facts are worth collecting."""
    return bool(_listeners)


def release() -> None:
    """Have listeners with a method `release` end threads and close files, until their next event."""
    for listener in _listeners:
        with _dropped_if_it_raises(listener):
            getattr(listener, "release", lambda: None)()


def exchange(old: Collection[Listener], new: Iterable[Listener]) -> None:
    """Replace the listeners `old` by `new`, with no event in between."""
    global _listeners
    with _lock:
        _listeners = (*(one for one in _listeners if one not in old), *new)


def state(
    graph: str,
    name: str,
    detail: str = "",
    *,
    stage: int = 0,
    at: float | None = None,
    facts: Mapping[str, object] | None = None,
) -> None:
    """Report a graph's state, now or since `at`."""
    if _listeners:
        event = State(time.monotonic() if at is None else at, graph, name, detail, stage, facts or {})
        for listener in _listeners:
            with _dropped_if_it_raises(listener):
                listener.on_state(event)


def span(name: str, begin: float, end: float, **facts: object) -> None:
    """Report what this thread did from `begin` to `end`."""
    if _listeners:
        tell(Span(name, begin, end, os.getpid(), threading.get_native_id(), facts=facts))


def tell(event: Span) -> None:
    """Pass on a span, such as another process's."""
    for listener in _listeners:
        with _dropped_if_it_raises(listener):
            listener.on_span(event)


@contextlib.contextmanager
def _dropped_if_it_raises(listener: Listener) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        unlisten(listener)
        log.warning("%s stopped: %s", getattr(listener, "name", type(listener).__name__), error)
