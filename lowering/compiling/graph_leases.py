"""One machine's turn to compile a graph: the other machines of a remote cache wait for its entry (`remote.leases`).

A graph without a key has no turns, nor does one for which the program wants files for debugging. Neither has a process
that uploads nothing, or that compiles in itself. A machine waits at most for `remote_wait` seconds, by default as long
as compiling the graph here might take: twice the longest of this process's last compiles, at least 30 s. A process that
waits for most graphs compiles few, and small ones say little about the next; if patience ends too early, it does so on
all machines at the same time, and each of them compiles a graph that one will have done soon. It is patience with a
holder that renews its lease: that of one that has died lapses after `leases.PERIOD` seconds all the same.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from fxpool.lowering.artifact import sharing
from fxpool.lowering.core.attempt import Attempt
from fxpool.lowering.core.runtime import Part, runtime
from fxpool.lowering.request.captured_graph import Captured

__all__ = ["turn"]

# Seconds to wait at least, and as a multiple of the longest compile.
_SHORTEST, _TIMES = 30.0, 2.0
# The number of compiles that the patience depends on.
_LAST = 32


class _Durations(Part):
    """The seconds that this process's last compiles took."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_LAST)

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)

    def patience(self) -> float:
        return max(_SHORTEST, _TIMES * max(self._seconds, default=0.0))


@contextlib.contextmanager
def turn(captured: Captured, attempt: Attempt, look_up: Callable[[], Any | None]) -> Iterator[Any | None]:
    """Wait for this machine's turn to compile a graph in the ``with`` block.

    Yields the result of `look_up` instead if another machine has compiled the graph by then, else None. The turn ends
    when the new entry is uploaded, which the caller does not wait for. Raises what `look_up` raises.
    """
    store, settings = attempt.store, attempt.settings
    leases = sharing.leases(store, settings) if _has_turns(captured) and store is not None else None
    if leases is None:
        yield None
        return
    keys = [key.digest for key in captured.all_keys()]
    # Other kinds of processors have another last key. Code for devices is the same for all of them.
    key = keys[0] if captured.request.devices else keys[-1]
    durations = runtime.part(_Durations)
    patience = durations.patience() if settings.remote_wait is None else settings.remote_wait
    with attempt.timed("turn"):
        served, lease = leases.wait(key, look_up, patience, attempt.is_ending)
    start = time.monotonic()
    try:
        yield served
        if served is None:
            durations.add(time.monotonic() - start)
    finally:
        if lease is not None:
            leases.release(lease, after=keys)


def _has_turns(captured: Captured) -> bool:
    return captured.key is not None and captured.request.debug_files is None
