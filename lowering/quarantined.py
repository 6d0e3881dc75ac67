"""A graph that killed workers as often as it may is never compiled again under the same key: it runs as it is.

Not in the user's process either: what killed a worker would kill that.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

from fxpool import statistics
from fxpool.codecache import quarantine
from fxpool.codecache.store import LocalStore
from fxpool.errors import (
    JobMemoryError,
    JobTimeoutError,
    PoolError,
    QuarantinedError,
    StoreError,
    WorkerDiedError,
)
from fxpool.lowering.backend import Attempt

log = logging.getLogger("fxpool.lowering")

#: A job that ended its worker, or had to be ended; or did before.
DEADLY = (WorkerDiedError, JobTimeoutError, JobMemoryError, QuarantinedError)

_warned: set[str] = set()


def check(store: LocalStore | None, key: str | None, label: str) -> None:
    """Raises QuarantinedError if the graph of a key may not be compiled."""
    if store is None or key is None:
        return
    record = quarantine.find(store.root, key)
    if record is not None:
        raise QuarantinedError(label, key=key, error=record.error, log_path=record.log)


def add(store: LocalStore | None, key: str | None, label: str, error: PoolError) -> None:
    """Keep the graph of a job that had all its attempts from being compiled again, where that can be written."""
    if store is None or key is None or not isinstance(error, (WorkerDiedError, JobTimeoutError, JobMemoryError)):
        return
    if error.attempts < 2:
        return
    try:
        record = quarantine.add(store.root, key, label=label, error=error.message, log=error.log_path)
    except StoreError as refused:
        statistics.count("bypasses", "quarantine_not_kept")
        log.warning("%s will be compiled by the next process, too: %s", label, refused)
        return
    statistics.count("quarantined")
    if record.log:
        error.args = (f"{error.args[0]}\n  a copy for later: {record.log}",)


def run_eagerly(as_it_is: Callable[..., Any], attempt: Attempt, error: PoolError) -> Callable[..., Any]:
    """The graph as it is, with one warning per graph. Raises `error` under ``strict``."""
    if attempt.wanted.strict:
        raise error
    reason = "quarantined" if isinstance(error, QuarantinedError) else "worker_died"
    statistics.count("eager_calls", reason)
    attempt.how = "eager"
    attempt.reasons.append(reason)
    if attempt.key is None or attempt.key not in _warned:
        if attempt.key is not None:
            _warned.add(attempt.key)
        warnings.warn(f"{attempt.label} runs eagerly: {error}", RuntimeWarning, stacklevel=2)
    return as_it_is
