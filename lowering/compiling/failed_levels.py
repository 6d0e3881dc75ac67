"""Records the levels of the fallback chain that failed for a graph: later processes skip them.

A level that fails costs a compile, and each level below costs another. A level that failed although a lower level works
is recorded under its key (`codecache.store.records`), as are a result that could not be sent back, and a graph that
compiles at no level.
"""

from __future__ import annotations

from fxpool import failures, notices
from fxpool.codecache.store import records
from fxpool.errors import CannotReturnError, StoreError
from fxpool.lowering.core.attempt import Attempt
from fxpool.lowering.request.captured import Captured

__all__ = ["compiles_nowhere", "refuse", "remember"]

log = notices.logger(__name__)


def refuse(captured: Captured, attempt: Attempt) -> None:
    """Raise CannotReturnError if an earlier compile of this graph at this level failed."""
    if attempt.store is None or captured.key is None:
        return
    if reason := records.failed.find(attempt.store.root, captured.key.digest):
        raise CannotReturnError(reason, "it failed in an earlier process")


def compiles_nowhere(error: BaseException) -> bool:
    """Return whether an error of `refuse` says that the graph did not compile at any level."""
    return isinstance(error, CannotReturnError) and error.reason.startswith(records.NO_LEVEL)


def remember(attempt: Attempt, error: BaseException, *, nowhere: bool = False) -> None:
    """Record that the level of `attempt` failed with `error`, so that it is not tried again.

    `nowhere`: the graph did not compile in this process either, so the next one tries no worker.
    """
    store = attempt.store
    if store is None or attempt.key is None or not failures.FOLLOWS[failures.of(error)].remembered:
        return
    known = isinstance(error, CannotReturnError)
    prefix = records.NO_LEVEL if nowhere else records.COMPILE_ERROR
    reason = error.reason if known else f"{prefix}{type(error).__name__}"  # type: ignore[attr-defined]
    try:
        records.failed.add(store.root, attempt.key, reason)
    except StoreError as refused:
        log.info(
            "could not record that %s failed at this level, the next process will try it again: %s",
            attempt.label,
            refused,
        )
