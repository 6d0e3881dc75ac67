"""Compiling behind the user's back: a graph runs eagerly until its compiled form is there, then that is used.

    Dynamo ──▶ Swap ── eager: the graph as Dynamo made it; autograd, mutation, random numbers are eager's
                 ▲
                 └─ one assignment, between two calls
    thread of the graph: job of low priority ──▶ worker ──▶ entry ──▶ loaded here, one graph at a time

Dynamo has fixed its guards by then, so what the compile guards on (sizes, overlapping memory) is checked at each call,
and a call outside of it stays eager. Forward and backward of a step belong to one version, because a forward takes its
backward along; inside of an activation checkpoint the recomputation takes the version of the forward that it repeats.
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

from fxpool import statistics
from fxpool.errors import FxpoolError
from fxpool.lowering import ambient, effects, load
from fxpool.lowering.artifact import Parts
from fxpool.lowering.backend import Attempt
from fxpool.lowering.capture import Captured
from fxpool.torch_compat import shape_env, tracing

__all__ = ["Swap", "Version", "begin", "report", "wait"]

log = logging.getLogger("fxpool.lowering")

# At the interpreter's end a load that is under way gets so long; what waits for a worker gets nothing.
_END_SECONDS = 0.05

_swaps: weakref.WeakSet[Swap] = weakref.WeakSet()
_loading = threading.Lock()
_ending = threading.Event()


@dataclasses.dataclass(frozen=True)
class Version:
    """Compiled code, and the calls it is for."""

    call: Callable[..., Any]
    guards: Sequence[Any]
    places: dict[str, shape_env.Place]
    seen: set[tuple[Any, ...]] = dataclasses.field(default_factory=set)

    def fits(self, args: Sequence[Any]) -> bool:
        if not self.guards:
            return True
        values = {name: place.value_in(args) for name, place in self.places.items()}
        key = tuple(values.values())
        if key in self.seen:
            return True
        if not effects.guards_hold(self.guards, values):
            return False
        self.seen.add(key)
        return True


class Swap:
    """What Dynamo calls for a graph. Thread-safe: a call reads the version once, and a swap is one assignment."""

    def __init__(self, label: str, eager: Callable[..., Any]) -> None:
        self.label = label
        self.state = "pending"
        self.error: BaseException | None = None
        self.raises = False
        self.over = threading.Event()
        self.pid = os.getpid()
        self._eager = eager
        self._version: Version | None = None
        self._lock = threading.Lock()
        self._counts = {"eager_calls": 0, "compiled_calls": 0, "swaps": 0, "outside_guards": 0}
        # Which version a checkpoint's forward had, for as long as the checkpoint may want it again.
        self._checkpoints: weakref.WeakKeyDictionary[Any, Version | None] = weakref.WeakKeyDictionary()
        _swaps.add(self)

    def __call__(self, *args: Any) -> Any:
        if self.raises and self.error is not None:
            raise self.error
        version = self._version
        checkpoint = tracing.checkpoint_in_force()
        if checkpoint is not None:
            with self._lock:
                version = self._checkpoints.setdefault(checkpoint, version)
        if version is not None:
            if version.fits(args):
                self._count("compiled_calls")
                return version.call(*args)
            self._count("outside_guards")
        self._count("eager_calls")
        return self._eager(*args)

    def use(self, version: Version) -> None:
        """From the next call on."""
        self._version = version
        self._count("swaps")
        self.state = "ready"
        self.over.set()

    def fail(self, error: BaseException, *, raises: bool) -> None:
        """Stay eager for ever; with `raises`, raise at the next call."""
        self.error, self.raises, self.state = error, raises, "failed"
        self.over.set()

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1


def begin(
    gm: Any, captured: Captured, attempt: Attempt, compile_it: Callable[[Attempt, Callable[[Parts], Any]], Any]
) -> Callable[..., Any]:
    """Have a graph compiled in the background; returns at once with what is to be called for it.

    `compile_it` waits for a worker's result and hands it to a loader; it runs in a thread of its own.
    """
    swap = Swap(attempt.label, gm.forward)
    places = shape_env.places(captured.fakes[len(captured.lifted) :])

    def loaded(parts: Parts) -> Version:
        with (
            _loading,
            ambient.entered_by_thread(captured.request.ambient),
            tracing.reentered(captured.context),
        ):
            if _ending.is_set():
                raise _EndingError
            begun = time.perf_counter()
            call = load.load_aot(parts, captured, gm.forward, late=True)
            later.seconds["load"] = time.perf_counter() - begun
        return Version(call, parts.guards, places)

    # What becomes of it is a record of its own: that of the first call is written when the call returns.
    later = dataclasses.replace(attempt, reasons=[], seconds={})

    def work() -> None:
        started = time.perf_counter()
        try:
            swap.use(compile_it(later, loaded))
        except _EndingError:
            return
        except BaseException as error:
            if _ending.is_set():
                return
            _failed(swap, later, error)
        finally:
            later.seconds["total"] = time.perf_counter() - started
        later.record()

    attempt.how = "async"
    threading.Thread(target=work, name=f"fxpool-async {attempt.label}", daemon=True).start()
    return tracing.never_traced(swap)


class _EndingError(Exception):
    """The interpreter ends: nothing is loaded any more."""


def _failed(swap: Swap, attempt: Attempt, error: BaseException) -> None:
    reason = f"async:{type(error).__name__}"
    statistics.count("fallbacks", reason)
    attempt.how = "eager"
    attempt.reasons.append(reason)
    swap.fail(error, raises=attempt.wanted.strict)
    text = f"{attempt.label} stays eager, its compile in the background failed: {type(error).__name__}: {error}"
    trace = getattr(error, "worker_traceback", "")
    log.info("%s", text, exc_info=error)
    if not attempt.wanted.strict:
        with contextlib.suppress(Warning):  # a filter that makes it an error has no call to raise it in
            warnings.warn(text + (f"\n{trace}" if trace else ""), RuntimeWarning, stacklevel=2)


def wait(timeout: float | None = None) -> list[dict[str, Any]]:
    """Wait until no graph is being compiled in the background, at most `timeout` seconds.

    What became of each that still exists: `label`, `state` (``ready``, ``failed``, ``pending``), `error` or None, and
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
    """The threads are the parent's; what is not there yet stays eager here."""
    global _loading
    _loading = threading.Lock()
    for swap in list(_swaps):
        swap._lock = threading.Lock()
        if swap.state == "pending":
            swap.over.set()


atexit.register(_end)
os.register_at_fork(after_in_child=_in_a_fork)
