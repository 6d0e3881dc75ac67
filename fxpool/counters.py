"""Counters of this process's graphs, and a short record per graph.

All packages count here, under the names shown by `fxpool.stats()`. A name counted with a reason
(`count("bypasses", "has_custom_hop")`) is a table of reason to count; a name counted without is a number.
Covers this process and nothing on disk; see `codecache.store.store` for the contents of a store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from fxpool import forks

__all__ = [
    "KEPT_GRAPHS", "NUMBERS", "add_seconds", "count", "example", "record_graph", "reset", "snapshot",
]  # fmt: skip

KEPT_GRAPHS = 1000  # a record is under 1 KB; limits the memory of a sweep over many models

#: Present from the start, so that readers need not check whether a name exists.
NUMBERS = (
    "hits",
    "misses",
    "guard_misses",
    "joined",
    "entries_written",
    "corrupt_entries",
    "quarantined",
    "restarts",
)
_TABLES: dict[str, tuple[str, ...]] = {
    "bypasses": (),
    "fallbacks": (),
    "compiles": ("worker", "in_process"),
    "quarantine_retries": (),  # reason: the limit that a graph exceeded and that is larger now
    "borrowed": (),  # jobs of stock Inductor after `fxpool.install()`
    "eager_calls": (),
    "remote": ("hits", "misses", "writes"),  # and `error:` with reasons, see docs/counters.md
    "leases": ("taken", "waited", "taken_over", "gave_up"),  # and `lost`
    "farm": ("compiled",),  # and `home:` with reasons
    "once": ("hits", "misses", "builds", "waits", "remote_hits"),  # and `failed`, `damaged`, `not_stored`
    "captures": ("recorded", "present"),  # and `not:` with reasons
    "regions": (),  # graphs cut, pieces, distinct pieces; `whole:` and `refused:` with reasons
    "frames": (),  # served, traced, kept, unfit
    "uncached": (),  # 1 under a reason at the end of a process that compiled graphs without any use of the cache
    "switched_off": (),  # reasons why this process has no pool or cache, each reported in one warning
}

_SECONDS = (
    "compile_seconds",  # of a graph's compile, or of waiting for it
    "seconds_saved",  # a graph's first compile, minus loading it now
    "remote_seconds",  # for which a graph waited for the remote cache
)

_lock = forks.lock(__name__, "_lock", lambda: _complete())
_numbers: dict[str, int] = {}
_tables: dict[str, dict[str, int]] = {}
_graphs: deque[dict[str, Any]] = deque(maxlen=KEPT_GRAPHS)
_seconds = dict.fromkeys(_SECONDS, 0.0)
_examples: dict[tuple[str, str], str] = {}


def count(name: str, reason: str | None = None, n: int = 1, *, example: str = "") -> None:
    """Add `n` to the counter `name`, under `reason` if the counter is a table of reasons.

    The latest `example` of a reason is kept for `explain()`, which takes those of graphs from their records.

    Raises:
        ValueError: `name` is a table of reasons and no reason is given, or the other way round.
    """
    with _lock:
        if reason is None:
            if name in _tables:
                raise ValueError(f"counter {name!r} needs a reason")
            _numbers[name] = _numbers.get(name, 0) + n
        else:
            if name in _numbers:
                raise ValueError(f"counter {name!r} takes no reason")
            table = _tables.setdefault(name, {})
            table[reason] = table.get(reason, 0) + n
            if example:
                _examples[name, reason] = example


def example(name: str, reason: str) -> str:
    """Return the latest example that was counted with a reason, or nothing."""
    return _examples.get((name, reason), "")


def record_graph(record: Mapping[str, Any]) -> None:
    """Add the record of a graph; the latest `KEPT_GRAPHS` records are kept.

    Plain data. Usual fields: `label`, `key`, `outcome` (`hit`, `worker`, `joined`, `in_process`, ...), `level` (`aot`
    or `fx`), `seconds` (phase to seconds; ``worker_lowering`` and ``worker_kernels`` are parts of ``compile``) and
    `reasons` (list of names that were also counted).
    """
    with _lock:
        _graphs.append(dict(record))


def add_seconds(name: str, seconds: float) -> None:
    """Add to one of `_SECONDS`. Ignores negative values."""
    with _lock:
        _seconds[name] += max(0.0, seconds)


def snapshot(*, graphs: bool = True) -> dict[str, Any]:
    """Return a copy of all counters: numbers, tables of reasons, seconds by name, and `graphs` unless that is false."""
    with _lock:
        result: dict[str, Any] = dict(_numbers)
        result.update({name: dict(table) for name, table in _tables.items()})
        result.update(_seconds)
        if graphs:
            result["graphs"] = [dict(record) for record in _graphs]
        return result


def reset() -> None:
    """Set all counters to zero and forget the graphs."""
    with _lock:
        _clear()


def _clear() -> None:
    _numbers.clear()
    _numbers.update(dict.fromkeys(NUMBERS, 0))
    _tables.clear()
    _tables.update({name: dict.fromkeys(reasons, 0) for name, reasons in _TABLES.items()})
    _graphs.clear()
    _examples.clear()
    _seconds.update(dict.fromkeys(_SECONDS, 0.0))


def _complete() -> None:
    """Restore missing counters in a child forked while another thread was resetting them."""
    for name in NUMBERS:
        _numbers.setdefault(name, 0)
    for name, reasons in _TABLES.items():
        _tables.setdefault(name, dict.fromkeys(reasons, 0))


_clear()
