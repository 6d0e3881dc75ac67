"""Compiling behind the user's back: a graph runs as it is, or as an earlier stage, while workers compile the next.

Dynamo ──▶ Swap ── first: the graph as Dynamo made it; autograd, mutation, random numbers are eager's
             ▲            or the code of an earlier stage
             └─ one assignment, between two calls
thread of the graph, stage by stage: job of low priority ──▶ worker ──▶ entry ──▶ loaded here, one at a time
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from fxpool import events, statistics
from fxpool.errors import FxpoolError, QuarantinedError
from fxpool.lowering import ambient, load
from fxpool.lowering.artifact import Parts
from fxpool.lowering.backend import Attempt
from fxpool.lowering.capture import Captured
from fxpool.lowering.request import BACKGROUND
from fxpool.lowering.swap import Swap, Version
from fxpool.torch_compat import shape_env, tracing

__all__ = ["Compile", "Stage", "begin", "report", "wait"]

log = logging.getLogger("fxpool.lowering")

# At the interpreter's end a load that is under way gets so long; what waits for a worker gets nothing.
_END_SECONDS = 0.05

_swaps: weakref.WeakSet[Swap] = weakref.WeakSet()
_loading = threading.Lock()
_ending = threading.Event()


@dataclasses.dataclass(frozen=True)
class Stage:
    """A graph under the options of one stage, and its number."""

    number: int
    captured: Captured
    slower: Callable[[float, float], None] = lambda new, old: None
    """Told the seconds of a call of it and of the stage before where it is not kept for them."""


@dataclasses.dataclass(frozen=True)
class Compile:
    """What `begin` needs of the ladder: both give loaded code, through the loader they are handed."""

    compile: Callable[[Stage, Attempt, Callable[[Parts], Any]], Any]
    """Waits for a worker."""
    find: Callable[[Stage, Attempt, Callable[[Parts], Any]], Any | None]
    """Looks whether somebody has compiled it meanwhile."""


def begin(
    gm: Any, stages: Sequence[Stage], attempt: Attempt, how: Compile, served: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Have the stages of a graph compiled in the background; returns at once with what is to be called for it.

    `served` is the code of the stage before the first of `stages`, if there is one. A stage that is there already is
    taken at once, and those before it are left out.
    """
    first = stages[0].number - 1
    swap = Swap(attempt.label, served or gm.forward, compiled=served is not None, stage=max(0, first))
    _swaps.add(swap)
    later = [dataclasses.replace(attempt, reasons=[], seconds={}, told=False, stage=stage.number) for stage in stages]

    def loaded(stage: Stage, its: Attempt, parts: Parts) -> Version:
        captured = stage.captured
        with (
            _loading,
            ambient.entered_by_thread(captured.request.ambient),
            tracing.reentered(captured.context),
            its.timed("load"),
        ):
            if _ending.is_set():
                raise _EndingError
            events.state(its.label, "loading", stage=stage.number)
            call = load.load_aot(parts, captured, gm.forward, late=True)
        places = shape_env.places(captured.fakes[len(captured.lifted) :])
        return Version(call, parts.guards, places, stage.number)

    def one(position: int) -> int:
        """Bring one stage into use; the position of the one after it."""
        for found in (*range(len(stages) - 1, position, -1), position):
            stage, its = stages[found], later[found]
            its.priority = BACKGROUND - stage.number  # what comes first in any graph comes before what is better
            try:
                with its.timed("total"):
                    find = how.find if found != position else how.compile
                    version = find(stage, its, lambda parts, s=stage, a=its: loaded(s, a, parts))  # type: ignore[misc]
            except _EndingError:
                raise
            except BaseException as error:
                if _ending.is_set():
                    raise _EndingError from None
                _failed(swap, stage, its, error)
                its.record()
                if swap.raises:
                    return len(stages)
                continue
            if version is None:
                continue
            _take(swap, version, stage, its)
            its.record()
            for skipped in stages[position:found]:
                swap.stages[skipped.number] = "skipped"
            return found + 1
        return position + 1

    def work() -> None:
        try:
            position = 0
            while position < len(stages):
                position = one(position)
        except _EndingError:
            return
        swap.end()

    for stage in stages:
        swap.stages[stage.number] = "pending"
    if served is None:
        attempt.how = "async"
    threading.Thread(target=work, name=f"fxpool-async {attempt.label}", daemon=True).start()
    return tracing.never_traced(swap)


class _EndingError(Exception):
    """The interpreter ends: nothing is loaded any more."""


def _take(swap: Swap, version: Version, stage: Stage, attempt: Attempt) -> None:
    calls = attempt.wanted.stage_calls
    if calls and stage.number and swap.stage is not None:
        swap.try_out(version, calls, stage.slower)
        attempt.tell("ready", "and measured")
    else:
        swap.use(version)
        attempt.tell()


def _failed(swap: Swap, stage: Stage, attempt: Attempt, error: BaseException) -> None:
    eager = swap.stage is None
    reason = f"{'async' if eager else 'progressive'}:{type(error).__name__}"
    attempt.how = "eager" if eager else "not_kept"
    swap.fail(stage.number, error, raises=attempt.wanted.strict)
    statistics.count("fallbacks", reason)
    attempt.reasons.append(reason)
    attempt.tell("failed", type(error).__name__)
    stays = "stays eager" if eager else "stays at the stage before"
    text = f"{attempt.label} {stays}, its compile in the background failed: {type(error).__name__}: {error}"
    trace = getattr(error, "worker_traceback", "")
    log.info("%s", text, exc_info=error)
    if attempt.wanted.strict or (isinstance(error, QuarantinedError) and not eager):
        return  # said at the next call; was said when it died
    with contextlib.suppress(Warning):  # a filter that makes it an error has no call to raise it in
        warnings.warn(text + (f"\n{trace}" if trace else ""), RuntimeWarning, stacklevel=2)


def wait(timeout: float | None = None) -> list[dict[str, Any]]:
    """Wait until no graph is being compiled in the background, at most `timeout` seconds.

    What became of each that still exists: `label`; `state` (``ready``, ``failed``: eager for good, ``pending``);
    `error` or None; `stage`, the number of the one in use, None for eager; `stages`, number to what became of it
    (``in use``, ``superseded``, ``measured``: the calls decide, ``slower``, ``skipped``, ``failed``, ``pending``); and
    counts of calls (`eager_calls`, `compiled_calls`, `swaps`, `outside_guards`).
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    for swap in list(_swaps):
        if swap.pid == os.getpid():
            swap.over.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
    return report()


def report() -> list[dict[str, Any]]:
    """What `wait` returns, without waiting."""
    found = [
        {
            "label": swap.label,
            "state": swap.state,
            "error": None if swap.error is None else _message(swap.error),
            "stage": swap.stage,
            "stages": dict(swap.stages),
            **swap.counts(),
        }
        for swap in list(_swaps)
    ]
    return sorted(found, key=lambda one: str(one["label"]))


def _message(error: BaseException) -> str:
    return error.message if isinstance(error, FxpoolError) else f"{type(error).__name__}: {error}"


def _end() -> None:
    _ending.set()
    if _loading.acquire(timeout=_END_SECONDS):
        _loading.release()


def _in_a_fork() -> None:
    global _loading
    _loading = threading.Lock()
    for swap in list(_swaps):
        swap.in_a_fork()


atexit.register(_end)
os.register_at_fork(after_in_child=_in_a_fork)
