"""Compiles in the background: a graph runs eagerly, or in an earlier stage, while workers compile the next stage.

Dynamo ──▶ Swap ── first: the graph as Dynamo made it; autograd, mutation, random numbers are eager's
             ▲            or the code of an earlier stage
             └─ one assignment, between two calls
thread of the graph, stage by stage: job of low priority ──▶ worker ──▶ entry ──▶ loaded here, one graph at a time
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from fxpool import counters, forks, notices
from fxpool.errors import FxpoolError, PoolUnavailableError, QuarantinedError
from fxpool.lowering.artifact import load, sharing
from fxpool.lowering.artifact.entry_parts import Parts
from fxpool.lowering.background.swap import Swap, Version
from fxpool.lowering.compiling import eager
from fxpool.lowering.compiling.graph_compile import GraphCompile
from fxpool.lowering.core import switched_off
from fxpool.lowering.core.attempt import Attempt, Outcome
from fxpool.lowering.core.runtime import Part, runtime
from fxpool.lowering.request import ambient_state
from fxpool.lowering.request.captured_graph import Captured
from fxpool.lowering.request.compile_request import BACKGROUND
from fxpool.torch_compat.dynamo import shape_env, tracing
from fxpool.watch import events

if TYPE_CHECKING:
    import torch

    from fxpool.pool import Job

__all__ = ["PIECES", "Stage", "begin", "report", "wait", "withdraw"]

log = notices.logger(__name__)

# At interpreter shutdown, jobs are withdrawn, and threads get this long to finish their current step in Python:
# milliseconds, or a load. A thread that still runs when the interpreter is torn down can abort the process (SIGABRT
# if Dynamo's frame evaluation is on its stack).
_END_SECONDS = 1.0

#: The number of the graph's pieces among its stages.
PIECES = -1

_FIRST_CALL_SECONDS = 3.0
# The number of sizes of a graph that separate code is compiled for: Dynamo's default limit for recompiles.
_SIZES = 8


class _Background(Part):
    """The background compiles of this process, withdrawn at interpreter shutdown."""

    def __init__(self) -> None:
        self.swaps: weakref.WeakSet[Swap] = weakref.WeakSet()
        self.loading = forks.lock(self, "loading")
        self.ending = forks.event()
        self.threads: set[threading.Thread] = set()
        self.jobs: set[Job] = set()
        atexit.register(self.end)

    def submitted(self, job: Job) -> None:
        """Register a job, to be withdrawn at interpreter shutdown."""
        self.jobs.add(job)
        job.add_done_callback(self.jobs.discard)
        if self.ending.is_set():
            job.cancel()

    def end(self, seconds: float = _END_SECONDS) -> None:
        """Withdraw all jobs, and wait up to `seconds` for the threads."""
        self.ending.set()
        for job in list(self.jobs):
            job.cancel()
        for swap in list(self.swaps):
            swap.settled.set()
        deadline = time.monotonic() + seconds
        for thread in list(self.threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    def after_fork_in_child(self) -> None:
        self.threads.clear()
        self.jobs.clear()
        for swap in list(self.swaps):
            swap.in_a_fork()

    def reset(self) -> None:
        self.swaps.clear()


def _background() -> _Background:
    return runtime.part(_Background)


@dataclasses.dataclass(frozen=True)
class Stage:
    """A graph under the options of one stage, and its number."""

    number: int
    captured: Captured
    slower: Callable[[float, float], None] = lambda new, old: None
    """Called with the seconds per call of this stage and of the stage before it, if it is dropped as slower."""


#: Waits for a graph's pieces; returns their code, and its guards.
Pieces = Callable[[Attempt], tuple[Callable[..., Any], list[Any]]]


def begin(
    gm: torch.fx.GraphModule,
    stages: Sequence[Stage],
    attempt: Attempt,
    served: Callable[..., Any] | None = None,
    pieces: Pieces | None = None,
) -> Callable[..., Any]:
    """Compile the stages of a graph in the background; return at once the callable to use in its place.

    `served` is the code of the attempt's stage, if that is in the cache; `pieces` and `stages` come after it. A stage
    that is in the cache is used at once, and the stages before it are skipped. A call that does not satisfy the guards
    of the code has separate code compiled, because Dynamo does not know these guards and will not trace again.
    """
    swap = Swap(attempt.label, served or gm.forward, compiled=served is not None, stage=attempt.stage)
    work = _Work(gm, swap, stages, attempt, pieces)
    _background().swaps.add(swap)
    if pieces is not None:
        swap.stages[PIECES] = "pending"
    for stage in stages:
        swap.stages[stage.number] = "pending"
    if served is None:
        attempt.outcome = Outcome.ASYNC
    work.start(work.all_stages)
    function = tracing.never_traced(swap)
    function.fxpool_recipe = work.recipe
    return function


class _Work:
    """The work for one graph, in its own threads."""

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        swap: Swap,
        stages: Sequence[Stage],
        attempt: Attempt,
        pieces: Pieces | None,
    ) -> None:
        self._background = _background()
        self._gm = gm
        self._swap = swap
        self._stages = stages
        self._attempt = attempt
        self._pieces = pieces
        self.recipe: Future[load.Recipe | None] = Future()
        self._sizes: set[tuple[Any, ...]] = set()
        self._lock = forks.lock(self, "_lock")

    def start(self, work: Callable[[], None]) -> None:
        self._swap.begin()

        def run() -> None:
            try:
                work()
            except _EndingError:
                pass
            finally:
                self._swap.end()
                self._background.threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=f"fxpool-async {self._attempt.label}", daemon=True)
        self._background.threads.add(thread)
        thread.start()

    def all_stages(self) -> None:
        # The user waits for the first call, with its backward. It should not share the interpreter, and on a small
        # machine the cores, with the work of sending the request.
        self._swap.settled.wait(_FIRST_CALL_SECONDS)
        if self._pieces is not None:
            self._use_pieces(self._pieces)
        position = 0
        while position < len(self._stages) and not self._swap.raises:
            position = self._next_from(position)
        # A frame that is served has no background compile: only the last stage may be kept with it.
        self.recipe.set_result(self._swap.recipe(self._stages[-1].number))

    def _next_from(self, position: int) -> int:
        """Use the best stage in the cache, or else compile that of `position`; return the position after it."""
        for better in range(len(self._stages) - 1, position, -1):
            if self._one(self._stages[better], _look_up):
                for skipped in self._stages[position:better]:
                    self._swap.stages[skipped.number] = "skipped"
                return better + 1
        self._one(self._stages[position], _compile)
        return position + 1

    def _use_pieces(self, pieces: Pieces) -> None:
        """Use the pieces until the first stage is ready; without them the graph runs eagerly until then."""
        first = self._stages[0].captured

        def make(graph: GraphCompile) -> Version:
            call, guards = pieces(graph.attempt)
            places = shape_env.places(first.fakes[len(first.lifted) :])
            return Version(call, guards, places, PIECES)

        self._one(Stage(PIECES, first), make, timed=False)

    def _one(self, stage: Stage, make: Callable[[GraphCompile], Any | None], *, timed: bool = True) -> bool:
        """Use a stage if `make` returns its code. Each stage gets a separate record."""
        attempt = self._attempt.part(
            stage=stage.number,
            submitted=self._background.submitted,
            is_ending=self._background.ending.is_set,
            priority=BACKGROUND - stage.number,  # first stages of all graphs before later stages of any
        )
        graph = GraphCompile(stage.captured, attempt, lambda parts: self._loaded(stage, attempt, parts))
        if self._background.ending.is_set():
            raise _EndingError
        try:
            with attempt.timed("total"):
                version = make(graph)
        except _EndingError:
            raise
        except BaseException as error:
            if self._background.ending.is_set():
                raise _EndingError from None
            _failed(self._swap, stage, attempt, error)
            attempt.record()
            return False
        if version is None:
            return False
        self._take(version, stage, attempt, timed)
        attempt.record()
        return True

    def _loaded(self, stage: Stage, attempt: Attempt, parts: Parts) -> Version:
        captured = stage.captured
        with (
            self._background.loading,
            ambient_state.entered_by_thread(captured.request.ambient),
            tracing.reentered(captured.context),
            attempt.timed("load"),
        ):
            if self._background.ending.is_set():
                raise _EndingError
            events.state(attempt.label, "loading", stage=stage.number)
            call = load.load_aot(parts, captured, self._gm.forward, late=True)
        places = shape_env.places(captured.fakes[len(captured.lifted) :])
        return Version(call, parts.guards, places, stage.number, recipe=load.recipe_of(parts, captured))

    def _take(self, version: Version, stage: Stage, attempt: Attempt, timed: bool) -> None:
        if version.guards:
            self._swap.on_outside = self._outside
        calls = attempt.options.stage_calls if timed else 0
        if calls and self._swap.stage is not None:
            self._swap.try_out(version, calls, stage.slower)
            attempt.report("ready", "and measured")
        else:
            self._swap.use(version)
            attempt.report()

    def _outside(self, best: Version, args: Sequence[Any]) -> None:
        """Compile a version for sizes that no version covers, once per sizes, for at most `_SIZES` of them."""
        values = {name: place.value_in(args) for name, place in best.places.items()}
        sizes = tuple(sorted(values.items()))
        with self._lock:
            if sizes in self._sizes or len(self._sizes) >= _SIZES or not self._swap.over.is_set():
                return
            self._sizes.add(sizes)
        at_hand = [one for one in self._stages if one.number == best.stage]
        if not at_hand:
            return  # pieces: the first stage is being compiled
        (stage,) = at_hand
        other = dataclasses.replace(stage, captured=stage.captured.for_sizes(values))

        def work() -> None:
            if not self._one(other, _look_up, timed=False):
                self._one(other, _compile, timed=False)

        self.start(work)


def _look_up(graph: GraphCompile) -> Any | None:
    """Look a stage up: another process may have compiled it by now."""
    return graph.look_up(count_misses=False)


def _compile(graph: GraphCompile) -> Any:
    """Have a worker compile a stage, and wait for it."""
    eager.check(graph.attempt)
    if graph.attempt.options.asynchronous and sharing.address(graph.attempt.settings, say=False) is not None:
        version = _look_up(graph)
        if version is not None:
            return version
    return graph.compile()


class _EndingError(Exception):
    """The interpreter is shutting down: nothing can be loaded."""


def _failed(swap: Swap, stage: Stage, attempt: Attempt, error: BaseException) -> None:
    eager = swap.stage is None
    reason = f"{'async' if eager else 'progressive'}:{type(error).__name__}"
    attempt.outcome = Outcome.EAGER if eager else Outcome.NOT_KEPT
    swap.fail(stage.number, error, raises=attempt.options.strict)
    counters.count("fallbacks", reason)
    attempt.reasons.append(reason)
    attempt.report("failed", type(error).__name__)
    stays = "stays eager" if eager else "stays at its previous stage"
    text = f"{attempt.label} {stays}: its background compile failed: {type(error).__name__}: {error}"
    trace = getattr(error, "worker_traceback", "")
    log.info("%s", text, exc_info=error)
    if attempt.options.strict or (isinstance(error, QuarantinedError) and not eager):
        return  # said at the next call; was said when it died
    if isinstance(error, PoolUnavailableError):  # no graph's doing: the next would say the same
        switched_off.say_without_pool(error, "graphs keep running as they are")
    else:
        notices.warn(text + (f"\n{trace}" if trace else ""))


def wait(timeout: float | None = None) -> list[dict[str, Any]]:
    """Wait until no graph is being compiled in the background, at most `timeout` seconds.

    Returns a record of each graph that still exists: `label`; `state` (``ready``, ``failed``: stays eager,
    ``pending``); `error` or None; `stage`, the number of the stage in use, None for eager, -1 for pieces; `stages`,
    each stage's state by number (``in use``, ``superseded``, ``measured``: being timed, ``slower``, ``skipped``,
    ``failed``, ``pending``); and counts of calls (`eager_calls`, `compiled_calls`, `swaps`, `outside_guards`).
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    if timeout is None or timeout > 0:
        for swap in list(_background().swaps):
            swap.settled.set()  # the caller waits, so there is no first call to spare
    for swap in list(_background().swaps):
        if swap.pid == os.getpid():
            swap.over.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
    return report()


def withdraw(seconds: float) -> list[str]:
    """Withdraw the compiles that are under way, in up to `seconds`: their graphs stay as they are.

    Returns the graphs' labels.
    """
    background = _background()
    pending = {swap.label for swap in list(background.swaps) if swap.pid == os.getpid() and not swap.over.is_set()}
    if background.threads:
        background.end(seconds)
        background.ending.clear()
    return sorted(pending)


def report() -> list[dict[str, Any]]:
    """Return what `wait` returns, without waiting."""
    rows = [
        {
            "label": swap.label,
            "state": swap.state,
            "error": None if swap.error is None else _message(swap.error),
            "stage": swap.stage,
            "stages": dict(swap.stages),
            **swap.counts(),
        }
        for swap in list(_background().swaps)
    ]
    return sorted(rows, key=lambda one: str(one["label"]))


def _message(error: BaseException) -> str:
    return error.message if isinstance(error, FxpoolError) else f"{type(error).__name__}: {error}"
