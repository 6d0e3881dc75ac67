"""Quarantine: a graph that killed its workers at every attempt is not compiled again under its key, but runs eagerly.

It is not compiled in the user's process either, since it would kill that, too. A graph that exceeded a limit of time or
memory is tried again by a process with a larger limit, and the new outcome replaces the record. Resource shortages of
the host are not the graph's fault: their errors are not in `DEADLY`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from fxpool import counters, interruptions, notices
from fxpool.codecache.key import toolchain
from fxpool.codecache.store import quarantine
from fxpool.codecache.store.entry import Origin
from fxpool.errors import (
    JobMemoryError,
    JobTimeoutError,
    PoolError,
    QuarantinedError,
    RecordedError,
    StoreError,
    WorkerDiedError,
)
from fxpool.lowering.core.attempt import Attempt, Outcome
from fxpool.lowering.core.runtime import Part, runtime
from fxpool.torch_compat.dynamo import frames
from fxpool.torch_compat.state import configs

log = notices.logger(__name__)

#: Errors of a job that ended its worker or had to be killed, now or earlier.
DEADLY = (WorkerDiedError, JobTimeoutError, JobMemoryError, QuarantinedError)

#: Errors after which a graph runs eagerly.
RUNS_EAGERLY = (*DEADLY, RecordedError)


class _Quarantined(Part):
    """Keys of graphs that this process has `warned` of, and keys `on_trial` under a larger limit than they exceeded."""

    def __init__(self) -> None:
        self.warned: set[str] = set()
        self.on_trial: set[str] = set()

    def after_fork_in_child(self) -> None:
        self.on_trial.clear()  # the parent's jobs


def check(attempt: Attempt) -> None:
    """Raise QuarantinedError if the graph of an attempt may not be compiled under its limits."""
    store, key, label = attempt.store, attempt.key, attempt.label
    if store is None or key is None:
        return
    record = quarantine.find(store.root, key)
    if record is None:
        return
    if record.holds_under(runtime.limits(attempt.settings) if record.limit else {}):
        raise QuarantinedError(
            label, key=key, error=record.error, log_path=record.log, limit=record.limit, value=record.value
        )
    log.info("compiling %s again under a larger limit: %s", label, record.error)
    counters.count("quarantine_retries", record.limit)
    runtime.part(_Quarantined).on_trial.add(key)


def passed(attempt: Attempt) -> None:
    """Release the graph of an attempt from quarantine: a worker has compiled it under a larger limit."""
    store, key = attempt.store, attempt.key
    if store is None or key is None or key not in runtime.part(_Quarantined).on_trial:
        return
    runtime.part(_Quarantined).on_trial.discard(key)
    try:
        quarantine.release(store.root, key)
    except OSError as error:
        log.warning("could not release a graph that compiles from quarantine: %s", error)


def add(attempt: Attempt, error: PoolError, origin: Origin | None = None) -> None:
    """Quarantine the graph of a job that has used all its attempts, if the record can be written."""
    store, key, label = attempt.store, attempt.key, attempt.label
    if store is None or key is None or not isinstance(error, (WorkerDiedError, JobTimeoutError, JobMemoryError)):
        return
    if error.attempts < 2:
        return
    limit, value = "", 0.0
    if isinstance(error, JobTimeoutError):
        limit, value = "timeout", error.seconds
    elif isinstance(error, JobMemoryError):
        limit, value = "memory", float(error.limit)
    if limit:
        # The server's limit may be lower than this process's: the graph counts as tried under the higher one.
        value = max(value, runtime.limits(attempt.settings)[limit])
    function = origin.described if origin is not None else ""
    try:
        record = quarantine.add(
            store.root,
            key,
            label=label,
            error=error.message,
            log=error.log_path,
            limit=limit,
            value=value,
            function=function,
        )
    except StoreError as refused:
        counters.count("bypasses", "quarantine_not_kept")
        log.warning("could not quarantine %s, the next process will compile it again: %s", label, refused)
        return
    counters.count("quarantined")
    # The server's log is removed with the server; the copy remains.
    in_quarantine = QuarantinedError(
        label, key=key, error=error.message, log_path=record.log or error.log_path or "", limit=limit
    )
    error.remedy = in_quarantine.remedy
    error.args = (f"{error.message}\n  {error.remedy}",)


@contextlib.contextmanager
def compiling_as_stock(attempt: Attempt, *, with_caches: bool = False) -> Iterator[None]:
    """Have torch compile in this process inside the ``with`` block, as if fxpool were not used.

    torch's caches are off for a graph with unproven code of the program's, unless the call says `with_caches`.
    """
    attempt.outcome = Outcome.IN_PROCESS
    counters.count("compiles", "in_process")
    with attempt.timed("compile"), toolchain.of_stock(attempt.toolchain_dir), interruptions.let_through():
        with configs.without_torchs_caches() if attempt.has_own_code and not with_caches else contextlib.nullcontext():
            yield


def run_eagerly(as_it_is: Callable[..., Any], attempt: Attempt, error: PoolError) -> Callable[..., Any]:
    """Return the eager graph, with one warning per graph. Raises `error` under ``strict``, unless it was recorded."""
    if isinstance(error, RecordedError):
        counters.count("eager_calls", "recorded")
        attempt.outcome = Outcome.EAGER
        return as_it_is
    if attempt.options.strict:
        raise error
    reason = "quarantined" if isinstance(error, QuarantinedError) else "worker_died"
    counters.count("eager_calls", reason)
    attempt.outcome = Outcome.EAGER
    attempt.reasons.append(reason)
    warned = runtime.part(_Quarantined).warned
    if attempt.key is None or attempt.key not in warned:
        if attempt.key is not None:
            warned.add(attempt.key)
        frame = frames.current_frame()
        of = f" ({frame.name}, {frame.file}:{frame.line})" if frame is not None else ""
        notices.warn(f"{attempt.label} runs eagerly{of}: {error}")
    return as_it_is
