"""The callable of a graph whose code changes: eager or an earlier stage first, better code once it is ready.

Dynamo has already fixed its guards when later code is compiled. So the guards of that compile (sizes, overlapping
memory) are checked at each call; a call that does not satisfy them runs the previous version, down to the version that
Dynamo's own guards cover. Forward and backward of a step belong to the same version, because a forward brings its
backward along. Inside an activation checkpoint, the recomputation chooses among the versions that its forward chose
among.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxpool import forks
from fxpool.lowering.artifact import load, side_effects
from fxpool.torch_compat.dynamo import shape_env, tracing

__all__ = ["Swap", "Trial", "Version"]

# The number of first calls of each version that are not timed: they load kernels, record graphs, fill caches.
_WARM_UP = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Version:
    """Compiled code, the guards of the calls that it covers, and its recipe (`artifact.load.Recipe`) if it has one."""

    call: Callable[..., Any]
    guards: Sequence[Any] = ()
    places: dict[str, shape_env.Location] = dataclasses.field(default_factory=dict)
    stage: int = 0
    seen: set[tuple[Any, ...]] = dataclasses.field(default_factory=set)
    recipe: load.Recipe | None = None

    def fits(self, args: Sequence[Any]) -> bool:
        if not self.guards:
            return True
        values = {name: place.value_in(args) for name, place in self.places.items()}
        key = tuple(values.values())
        if key in self.seen:
            return True
        if not side_effects.guards_hold(self.guards, values):
            return False
        self.seen.add(key)
        return True


def _finish_devices(args: Sequence[Any]) -> None:
    """Wait for the work on the inputs' devices; work on the CPU is synchronous."""
    if any(isinstance(arg, torch.Tensor) and arg.device.type != "cpu" for arg in args):
        torch.accelerator.synchronize()


class Trial:
    """Times a new version against the version in use, in alternating calls of the same sizes.

    It times the call, which in training is the forward. `decided(faster, seconds of the new, of the old)` is called
    once, in the thread of the last call.
    """

    def __init__(
        self, candidate: Version, incumbent: Version, calls: int, decided: Callable[[bool, float, float], None]
    ) -> None:
        self.candidate = candidate
        self.incumbent = incumbent
        self._calls = calls
        self._decided = decided
        self._sizes: tuple[Any, ...] | None = None
        self._begun = 0
        self._seconds: dict[Version, list[float]] = {candidate: [], incumbent: []}
        self._lock = forks.lock(self, "_lock")
        self.over = False

    def is_for(self, args: Sequence[Any]) -> bool:
        """Return whether a call counts: its inputs have the sizes of the first call that both versions cover."""
        if self.over:
            return False
        sizes = tuple(tuple(arg.shape) if hasattr(arg, "shape") else arg for arg in args)
        if self._sizes is None:
            if not (self.candidate.fits(args) and self.incumbent.fits(args)):
                return False
            self._sizes = sizes
        return sizes == self._sizes

    def run(self, args: Sequence[Any]) -> Any:
        with self._lock:
            version = (self.candidate, self.incumbent)[self._begun % 2]
            warm = self._begun // 2 < _WARM_UP
            self._begun += 1
        _finish_devices(args)
        started = time.perf_counter()
        result = version.call(*args)
        _finish_devices(args)
        if not warm:
            self._add(version, time.perf_counter() - started)
        return result

    def _add(self, version: Version, seconds: float) -> None:
        with self._lock:
            self._seconds[version].append(seconds)
            if self.over or min(map(len, self._seconds.values())) < self._calls:
                return
            self.over = True
        new, old = (statistics.median(self._seconds[one]) for one in (self.candidate, self.incumbent))
        self._decided(new <= old, new, old)


class Swap:
    """The callable of a graph. Thread-safe: a call reads the versions once, and a swap is one assignment.

    `base` is the graph as Dynamo made it or (`compiled`) code of stage `stage` that Dynamo's guards cover. `on_outside`
    is called with the best version and the arguments of a call that no version covers. `settled`: the first call has
    finished; if it may have a backward, the second call has started.
    """

    def __init__(self, label: str, base: Callable[..., Any], *, compiled: bool = False, stage: int = 0) -> None:
        self.label = label
        self.state = "ready" if compiled else "failed"
        self.error: BaseException | None = None
        self.raises = False
        self.over = forks.event()
        self.over.set()
        self.settled = forks.event()
        self._called = False
        self.pid = os.getpid()
        self.stages: dict[int, str] = {stage: "in use"} if compiled else {}
        self._compiled = compiled
        self._under_way = 0
        self._base = Version(base, stage=stage)
        self._versions: tuple[Version, ...] = ()
        self._trial: Trial | None = None
        self._candidates: deque[tuple[Version, int, Callable[[float, float], None]]] = deque()
        self.on_outside: Callable[[Version, Sequence[Any]], None] | None = None
        self._lock = forks.lock(self, "_lock")
        self._counts = {"eager_calls": 0, "compiled_calls": 0, "swaps": 0, "outside_guards": 0}
        # The versions of each checkpoint's forward, kept as long as the checkpoint may recompute.
        self._checkpoints: weakref.WeakKeyDictionary[Any, tuple[Version, ...]] = weakref.WeakKeyDictionary()

    def __call__(self, *args: Any) -> Any:
        if self.raises and self.error is not None:
            raise self.error
        versions, trial = self._versions, self._trial
        checkpoint = tracing.checkpoint_in_force()
        if checkpoint is not None:
            with self._lock:
                versions = self._checkpoints.setdefault(checkpoint, versions)
        elif trial is not None and trial.is_for(args):
            self._count("compiled_calls")
            return trial.run(args)
        for version in versions:
            if version.fits(args):
                self._count("compiled_calls")
                return version.call(*args)
        if versions:
            self._count("outside_guards")
            if self.on_outside is not None:
                self.on_outside(versions[0], args)
        self._count("compiled_calls" if self._compiled else "eager_calls")
        return self._base.call(*args) if self.settled.is_set() else self._first_call(args)

    def _first_call(self, args: Sequence[Any]) -> Any:
        if self._called:  # so the step of the first call is over
            self.settled.set()
            return self._base.call(*args)
        self._called = True
        with_backward = False
        try:
            result = self._base.call(*args)
            outputs = result if isinstance(result, (tuple, list)) else (result,)
            with_backward = any(isinstance(one, torch.Tensor) and one.requires_grad for one in outputs)
            return result
        finally:
            if not with_backward:
                self.settled.set()

    def use(self, version: Version) -> None:
        """Use a version from the next call on, where its guards hold."""
        with self._lock:
            before = self._versions if version.guards else ()
            for stage, state in self.stages.items():
                if state == "in use":
                    self.stages[stage] = "superseded"
            self.stages[version.stage] = "in use"
            self._counts["swaps"] += 1
            self._versions = (version, *before)

    def try_out(self, version: Version, calls: int, slower: Callable[[float, float], None]) -> None:
        """Use a version if it is not slower than the version in use, timed with `calls` calls of each; else call
        `slower`.

        Candidates are tried one after another. If no compiled version is in use, the candidate is used at once.
        """
        with self._lock:
            self.stages[version.stage] = "measured"
            self._candidates.append((version, calls, slower))
        self._next_trial()

    def _next_trial(self) -> None:
        with self._lock:
            if (self._trial is not None and not self._trial.over) or not self._candidates:
                return
            version, calls, slower = self._candidates.popleft()
            incumbent = self._versions[0] if self._versions else self._base if self._compiled else None
            if incumbent is not None:
                self._trial = Trial(version, incumbent, calls, lambda *told: self._tried(version, slower, *told))
                return
        self.use(version)
        self._next_trial()

    def _tried(
        self, version: Version, slower: Callable[[float, float], None], faster: bool, new: float, old: float
    ) -> None:
        self._trial = None
        if faster:
            self.use(version)
        else:
            self.stages[version.stage] = "slower"
            slower(new, old)
        self._next_trial()

    @property
    def stage(self) -> int | None:
        """Return the stage in use; None as long as calls are eager."""
        if self._versions:
            return self._versions[0].stage
        return self._base.stage if self._compiled else None

    def begin(self) -> None:
        """Mark a compile as started; every call is matched by one `end`."""
        with self._lock:
            self._under_way += 1
            if not self.raises:
                self.state = "pending"
            self.over.clear()

    def end(self) -> None:
        """Mark a compile that `begin` registered as finished."""
        with self._lock:
            self._under_way -= 1
            if self._under_way:
                return
            if not self.raises:
                self.state = "ready" if self.stage is not None or self._candidates else "failed"
            self.over.set()

    def fail(self, stage: int, error: BaseException, *, raises: bool) -> None:
        """Continue without `stage`; with `raises`, raise the error at the next call."""
        with self._lock:
            if self.stages.get(stage) != "in use":  # it may be in use for other sizes
                self.stages[stage] = "failed"
            self.error, self.raises = error, self.raises or raises
            if self.raises:
                self.state = "failed"

    def recipe(self, stage: int) -> load.Recipe | None:
        """Return the recipe of the code of a stage; None if that is not in use for all sizes."""
        return next((one.recipe for one in self._versions if one.stage == stage and not one.guards), None)

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def in_a_fork(self) -> None:
        """After a fork: the compile threads stayed in the parent, so pending code never arrives."""
        self._trial = None
        if self.state == "pending":
            self.over.set()

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1
