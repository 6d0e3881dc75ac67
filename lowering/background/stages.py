"""The stages of progressive modes: those that a call has, and those that do not pay on this host.

A stage is a set of Inductor's options on top of the call's options; each stage has its own key in the cache. A stage
that was timed and found slower than the stage before it is marked in the cache directory, and later processes skip it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fxpool import notices
from fxpool.codecache.store import small_records
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import CannotTravelError, StoreError
from fxpool.lowering.background.compiles import Stage
from fxpool.lowering.core.attempt import Attempt
from fxpool.lowering.request.captured_graph import Captured
from fxpool.torch_compat.state import configs

__all__ = ["of_call"]

log = notices.logger(__name__)


def of_call(attempt: Attempt, capture: Callable[[], Captured]) -> list[Stage]:
    """Return the stages of a graph, each captured by `capture()` under its options; the first is always included.

    Raises CannotTravelError: the first stage cannot be sent to another process.
    """
    options, store = attempt.options.stages or ({},), attempt.store
    stages: list[Stage] = []
    keys: list[str] = []  # of all stages so far, including skipped ones
    for number, wanted in enumerate(options):
        try:
            with configs.patched(wanted):
                captured = capture()
        except CannotTravelError as error:
            if not stages:
                raise
            attempt.step_down(f"stage:{error.reason}", error)
            continue
        if not _known_to_be_slower(captured, keys, store):
            stages.append(Stage(number, captured, _marker(captured, keys[-1:], store)))
        if captured.key is not None:
            keys.append(captured.key.digest)
    return stages


def _known_to_be_slower(captured: Captured, before: Sequence[str], store: LocalStore | None) -> bool:
    if store is None or captured.key is None or not before:
        return False
    than = small_records.demoted.find(store.root, captured.key.digest)
    return than is not None and than in before


def _marker(captured: Captured, before: Sequence[str], store: LocalStore | None) -> Any:
    def mark(new: float, old: float) -> None:
        log.info(
            "dropping a stage of %s: %.3g s per call, the previous stage takes %.3g s", captured.request.label, new, old
        )
        if store is None or captured.key is None or not before:
            return
        try:
            small_records.demoted.add(store.root, captured.key.digest, before[0])
        except StoreError as error:
            log.warning("could not record the dropped stage, the next process will time it again: %s", error)

    return mark
