"""Records the last misses of this process, so that `fxpool.explain` can give their reasons; logs them on request.

A record is a key with its packed parts, about 10 KB. A miss computes these anyway, because its entry stores them.
Comparisons are made only when requested: by `fxpool.explain()`, a log handler at level INFO (``TORCH_LOGS=fxpool``), or
a structured trace (``TORCH_TRACE``).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence

from fxpool import forks, notices
from fxpool.codecache.explain import misses
from fxpool.codecache.explain.misses import Miss, MissExplanation, Rejected
from fxpool.codecache.explain.nearest import Side
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore
from fxpool.lowering.artifact import side_effects
from fxpool.lowering.core.runtime import Part, runtime
from fxpool.lowering.request.captured_graph import Captured
from fxpool.torch_compat.dynamo import torch_counters

__all__ = ["LIMIT", "entries_of", "explained", "misses_so_far", "remember"]

log = notices.logger(__name__)

#: The number of misses that are recorded; older ones are dropped.
LIMIT = 64
# The number of entries that a log line or a trace compares with, as it does so at each miss.
_LOOKED_AT = 2000


class _Misses(Part):
    """The process's misses. A child has its parent's graphs, and explains their misses, too."""

    def __init__(self) -> None:
        self._lock = forks.lock(self, "_lock")
        self._misses: deque[Miss] = deque(maxlen=LIMIT)

    def add(self, miss: Miss) -> None:
        with self._lock:
            self._misses.append(miss)

    def all(self) -> list[Miss]:
        with self._lock:
            return list(self._misses)


def remember(
    captured: Captured, tried: Sequence[tuple[LocalStore, Entry]], stores: Sequence[LocalStore], newly_damaged: bool
) -> None:
    """Record a miss; `tried` are the entries of its key that were not served. Never raises: it is only diagnostic."""
    try:
        miss = _miss(captured, tried, newly_damaged)
        runtime.part(_Misses).add(miss)
        _tell(miss, stores)
    except Exception:
        log.debug("%s: could not explain the miss", captured.request.label, exc_info=True)


def _miss(captured: Captured, tried: Sequence[tuple[LocalStore, Entry]], newly_damaged: bool) -> Miss:
    captured.explain_key()
    request = captured.request
    key = request.key
    assert key is not None
    values = captured.values()
    rejected = []
    for store, entry in tried:
        if not side_effects.guards_hold(entry.guards, values):
            failed = misses.failed_guards(entry.guards, values)
            rejected.append(Rejected(entry.name, misses.GUARDS, failed))
        else:
            why = misses.NOT_LOADED if store.complete(entry) else misses.INCOMPLETE
            rejected.append(Rejected(entry.name, why))
    if newly_damaged:
        rejected.append(Rejected("", misses.DAMAGED))
    side = Side(key.digest, key.components, key.detail, request.origin, request.label)
    return Miss(side, "guard_miss" if tried else "miss", time.time(), tuple(rejected))


def misses_so_far() -> list[Miss]:
    """Return the misses of this process, the oldest first."""
    return runtime.part(_Misses).all()


def entries_of(stores: Sequence[LocalStore]) -> Iterator[Entry]:
    """Yield all sound entries of some stores."""
    for store in stores:
        yield from (one.entry for one in store.scan() if one.entry is not None)


def explained(miss: Miss, stores: Sequence[LocalStore], most: int | None = None) -> MissExplanation:
    """Explain a miss by comparing with the entries of these stores, or with the first `most` of them."""
    return misses.explained(miss, itertools.islice(entries_of(stores), most))


def _tell(miss: Miss, stores: Sequence[LocalStore]) -> None:
    """Explain a miss at once in the log and the structured trace, if they are enabled."""
    explanation = functools.cache(lambda: explained(miss, stores, _LOOKED_AT))
    if log.isEnabledFor(logging.INFO):
        log.info("%s: %s: %s", miss.side.label, miss.kind.replace("_", " "), explanation().first)
    torch_counters.miss_explained(lambda: json.dumps(dataclasses.asdict(explanation()), default=str))
