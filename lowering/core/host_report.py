"""Adds this process's counters to the host's statistics: at exit, and at intervals in a process that runs for long.

Uses `codecache.store.host_statistics`, which is imported inside functions, when there are counts to add. A forked
child adds its own counts.
"""

from __future__ import annotations

import atexit
import os
import time
from typing import Any

from fxpool import counters, forks, notices
from fxpool.lowering.core.runtime import Part, runtime

__all__ = ["attend", "graph_done", "report"]

log = notices.logger(__name__)

# Seconds between two reports of a running process: a process that is killed cannot report at exit.
_INTERVAL = 60.0


class _Reports(Part):
    """The counts of this process that have been added so far."""

    def __init__(self) -> None:
        self._lock = forks.lock(self, "_lock")
        self._reported: dict[str, Any] | None = None  # of `counters.snapshot`; None before the first report
        self._forked = False
        self.inherited: dict[str, Any] | None = None  # a forked child's counts of its parent
        self.last = time.monotonic()
        atexit.register(_end)

    def add(self) -> None:
        """Add the counts since the last report. Does not create a store's directory."""
        from fxpool.codecache.store import host_statistics

        with self._lock:
            self.last = time.monotonic()
            counted = _counted()
            new = host_statistics.Totals.of(counted)
            if self._reported is not None:
                new = new.since(host_statistics.Totals.of(self._reported))
                new.processes += self._forked
            store = runtime.store()
            if new.is_empty() or store is None or not os.path.isdir(store.root):
                return
            if host_statistics.add(store.root, new):
                self._reported, self._forked = counted, False

    def after_fork_in_child(self) -> None:
        """Leave the counts so far to the parent. Imports nothing here: the import lock may be held."""
        self._reported, self._forked = _counted(), True
        self.inherited = self._reported

    def reset(self) -> None:
        self._reported, self._forked, self.inherited = None, False, None


def _counted() -> dict[str, Any]:
    snapshot = counters.snapshot()
    del snapshot["graphs"]
    return snapshot


def attend() -> None:
    """Report at exit, even if no graph comes."""
    runtime.part(_Reports)


def graph_done() -> None:
    """Report if the last report is older than `_INTERVAL`. Takes microseconds otherwise."""
    last = runtime.part(_Reports).last  # before the clock is read: the first call sets it
    # A restored process may have an earlier clock.
    if not 0 <= time.monotonic() - last <= _INTERVAL:
        report()


def _end() -> None:
    """Sound the alarm if the cache was of no use, and report. Never raises."""
    try:
        from fxpool.lowering.core import cache_alarm  # with the texts of all reasons, which a hit does not need

        cache_alarm.sound(_since(runtime.part(_Reports).inherited))
    except Exception:  # the interpreter may be ending
        log.debug("could not tell whether the cache was of use", exc_info=True)
    report()


def _since(before: dict[str, Any] | None) -> dict[str, Any]:
    """Return the counts of this process since `before`."""
    now = _counted()
    for name, value in (before or {}).items():
        if isinstance(value, dict):
            now[name] = {reason: n - value.get(reason, 0) for reason, n in now[name].items()}
        else:
            now[name] -= value
    return now


def report() -> None:
    """Add this process's counts since the last report. Never raises."""
    try:
        runtime.part(_Reports).add()
    except Exception:  # the interpreter may be ending
        log.debug("the host's statistics were not written", exc_info=True)
