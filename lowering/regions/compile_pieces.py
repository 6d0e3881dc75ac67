"""Compiles a Dynamo graph in pieces to a composed callable, or gives the reason why it stays whole.

    graph ──▶ calls, plan ──▶ intervals ──▶ pieces ──▶ distinct pieces ──▶ captured and looked up, one after another
                                                                            │ misses: a worker each, side by side
    composed callable ◀── generated code ◀── loaded, or the next level of the fallback chain ◀──────┘

A piece that fails goes down the fallback chain alone; the other pieces are not affected.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from fxpool import counters, forks, interruptions, notices
from fxpool.lowering.artifact import load
from fxpool.lowering.artifact.entry_parts import Parts
from fxpool.lowering.compiling.graph_compile import GraphCompile, Pending
from fxpool.lowering.core.attempt import Attempt, Outcome
from fxpool.lowering.fallback import chain
from fxpool.lowering.regions import compose, recipes, symbols
from fxpool.lowering.regions.cut import Cut
from fxpool.lowering.regions.cut_points import TracedGraph, UncuttableError
from fxpool.lowering.regions.pieces import Piece
from fxpool.lowering.request import ambient_state, capture
from fxpool.lowering.request.captured_graph import Captured
from fxpool.torch_compat.dynamo import tracing
from fxpool.torch_compat.state import configs

if TYPE_CHECKING:
    from fxpool.pool import Job as PoolJob

__all__ = ["InPieces"]

log = notices.logger(__name__)

# From the worst outcome to the best: a graph in pieces has the outcome of its worst piece.
_WORST_FIRST = (Outcome.EAGER, Outcome.IN_PROCESS, Outcome.WORKER, Outcome.FARM, Outcome.JOINED, Outcome.HIT)


class InPieces:
    """A Dynamo graph that is cut into pieces, and compiled in one of three ways: `now`, `cached` or `later`.

    Raises UncuttableError: the graph stays whole.
    """

    def __init__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any], attempt: Attempt) -> None:
        with attempt.timed("cut"):
            _refuse_whole()
            self._graph = TracedGraph(gm, inputs)
            self._cut = Cut(self._graph, asked_for=attempt.options.regions == "on")
            distinct = self._cut.distinct()
            # Checked before anything is compiled: an output that has no source text is refused.
            compose.source(self._graph, [piece.interval for piece in self._cut.pieces], [True] * len(self._cut.pieces))
        counters.count("regions", "graphs")
        counters.count("regions", "pieces", len(self._cut.pieces))
        counters.count("regions", "distinct", len(distinct))
        log.info("compiling %s in %d pieces, %d distinct", attempt.label, len(self._cut.pieces), len(distinct))
        self._attempt = attempt
        # Numbers of pieces that run eagerly, although an equal piece was compiled.
        self._not_shared: set[int] = set()
        context = tracing.current_context()
        self._jobs = {
            name: _Job(piece, _part(attempt, number), tracing.of_piece(context))
            for number, (name, piece) in enumerate(distinct.items())
        }

    def now(self) -> Callable[..., Any]:
        """Return the callable for the graph; pieces that are not in the cache are compiled side by side.

        Raises what compiling a piece raises, as `fallback.chain.compile_with_fallback`.
        """
        jobs = self._jobs.values()
        loading = _Loading()
        try:
            by_workers = self._attempt.by_workers
            waiting = [job.start(loading) if by_workers and not job.look_up() else None for job in jobs]
            for job, wait in zip(jobs, waiting, strict=True):
                job.finish(wait)
        except BaseException:
            for job in jobs:
                job.cancel()
            raise
        finally:
            self._sum_up()
        self._share_guards()
        return self._composed()

    def cached(self) -> Callable[..., Any] | None:
        """Return the callable for the graph if every piece is in the cache. All are looked up."""
        there = [job.look_up() for job in self._jobs.values()]
        if not all(there):
            return None
        for job in self._jobs.values():
            job.finish(None)
        self._sum_up()
        self._share_guards()
        return self._composed()

    def later(self, attempt: Attempt) -> tuple[Callable[..., Any], list[Any]]:
        """Return the callable for the graph, and its guards on sizes. Call it after `cached`, from any thread.

        Dynamo has returned and accepts no more guards. Raises what the first piece that fails raises.
        """
        loading = _Loading()
        missing = [job for job in self._jobs.values() if job.call is None]
        waiting = []
        for number, job in enumerate(missing):
            job.attempt = _part(attempt, number)
            waiting.append(job.start(loading, late=True))
        for job, wait in zip(missing, waiting, strict=True):
            with _recorded(job.attempt):
                job.call = wait.result()
        guards = [guard for job in missing for guard in job.guards]
        for number, renaming in self._cut.renamings().items():
            if (of_first := self._jobs.get(self._cut.names[number])) is not None:
                guards += symbols.renamed(of_first.guards, renaming)
        return self._composed(), guards

    def _sum_up(self) -> None:
        """Set the graph's outcome and reasons from those of its pieces."""
        outcomes = [job.attempt.outcome for job in self._jobs.values()]
        self._attempt.outcome = next((worst for worst in _WORST_FIRST if worst in outcomes), Outcome.FAILED)
        for job in self._jobs.values():
            self._attempt.reasons += job.attempt.reasons

    def _share_guards(self) -> None:
        """Add the guards on a compiled piece's symbols to Dynamo's guards for the symbols of each equal piece."""
        context = tracing.current_context()
        env = context.fake_mode.shape_env if context is not None and context.fake_mode is not None else None
        for number, renaming in self._cut.renamings().items():
            if env is None or not symbols.make_known(env, renaming):
                counters.count("regions", "guards_not_shared")  # not expected: the values and facts are equal
                self._not_shared.add(number)

    def _composed(self) -> Callable[..., Any]:
        steps: list[compose.Step] = []
        of_steps: list[tuple[load.Recipe | None, bool]] = []
        for number, (piece, name) in enumerate(zip(self._cut.pieces, self._cut.names, strict=True)):
            as_is = name not in self._jobs or number in self._not_shared
            made: Any = piece.gm.forward if as_is else self._jobs[name].call
            boxed = isinstance(made, _Boxed)
            steps.append((piece.interval, made.call if boxed else made, boxed))
            if as_is:
                of_steps.append((recipes.of_views(piece) if name not in self._jobs else None, False))
            else:
                of_steps.append((made.recipe if boxed else getattr(made, "fxpool_recipe", None), boxed))
        label = self._attempt.label
        composed = tracing.never_traced(compose.compose(self._graph, steps, label))
        if self._graph.graph_nodes.issuperset(self._graph.attributes):  # no constants
            text = compose.source(self._graph, [step[0] for step in steps], [step[2] for step in steps])
            composed.fxpool_recipe = recipes.of_pieces(text, of_steps)
        return composed


def _part(attempt: Attempt, number: int) -> Attempt:
    return attempt.part(label=f"{attempt.label} piece {number}")


def _refuse_whole() -> None:
    """Raise UncuttableError if the current state rules out pieces."""
    context = tracing.current_context()
    if context is None or tracing.real_inputs_expected(context):
        raise UncuttableError("fakify_first_call", "DDPOptimizer has already cut the graph")
    if configs.cudagraphs():
        raise UncuttableError("cudagraphs", "a piece's parameters differ from call to call")
    if code := configs.code_values():
        raise UncuttableError("configured_code", f"{', '.join(sorted(code))} may look at the graph as a whole")


# ---------------------------------------------------------------- compiling


@dataclasses.dataclass(frozen=True)
class _Boxed:
    """A callable that takes its inputs in a list, and its recipe."""

    call: Callable[[list[Any]], Any]
    recipe: load.Recipe | None


class _Loading:
    """The lock for loading one piece at a time: it adds guards to the ShapeEnv that all pieces of a graph share."""

    def __init__(self) -> None:
        self.lock = forks.lock(self, "lock")


class _Job:
    """The compile of a distinct piece to a callable, `call`. `guards` are those that a late load leaves unchecked."""

    def __init__(self, piece: Piece, attempt: Attempt, context: tracing.TracingContext | None) -> None:
        self.attempt = attempt
        self.call: Any = None
        self.guards: list[Any] = []
        self._piece = piece
        self._context = context
        self._graph: GraphCompile | None = None
        self._refused: Exception | None = None
        self._submitted: list[PoolJob] = []

    def look_up(self) -> bool:
        """Capture the piece; return whether it is in the cache. An error counts as a miss, and `finish` handles it."""
        if self.call is not None:
            return True
        try:
            with tracing.reentered(self._context):
                self.call = self._look_up()
        except Exception as error:
            interruptions.pass_on(error)
            self._refused = error
        return self.call is not None

    def _look_up(self) -> Any:
        piece, attempt = self._piece, self.attempt
        with attempt.timed("capture"):
            captured = capture.capture(piece.gm, piece.inputs, label=attempt.label, into=attempt.destination)
        graph = GraphCompile(captured, attempt, lambda parts: self._load(captured, parts))
        served = graph.look_up_or_prepare()
        if served is None:
            self._graph = graph
        return served

    def _load(self, captured: Captured, parts: Parts, late: bool = False) -> _Boxed:
        with self.attempt.timed("load"):
            call = load.load_aot(parts, captured, self._piece.gm.forward, late=late, boxed=True)
        return _Boxed(call, load.recipe_of(parts, captured))

    def start(self, loading: _Loading, *, late: bool = False) -> Pending:
        """Start to compile the piece after a miss in `look_up`."""
        if self.attempt.submitted is None:
            self.attempt.submitted = self._submitted.append
        return Pending(lambda: self._compile(loading, late), self.attempt.label)

    def cancel(self) -> None:
        """Withdraw the piece from the pool. No-op if it is compiled."""
        for submitted in self._submitted:
            submitted.cancel()

    def _compile(self, loading: _Loading, late: bool) -> Any:
        if self._graph is None:
            raise self._refused or AssertionError("it was not looked up")
        captured = self._graph.captured

        def load_there(parts: Parts) -> _Boxed:
            with loading.lock, _as_in(captured):
                boxed = self._load(captured, parts, late)
            self.guards = list(parts.guards) if late else []
            return boxed

        return GraphCompile(captured, self.attempt, load_there).compile()

    def finish(self, waiting: Pending | None) -> None:
        """Use the compiled piece, or the next level of the fallback chain. Raises what that raises."""
        made = self.call
        started = waiting.result if waiting is not None else (lambda: made) if made is not None else None
        with tracing.reentered(self._context), _recorded(self.attempt):
            self.call = chain.compile_with_fallback(self._piece.gm, self._piece.inputs, self.attempt, started)


@contextlib.contextmanager
def _recorded(part: Attempt) -> Iterator[None]:
    try:
        yield
    finally:
        part.record()
        part.report()


@contextlib.contextmanager
def _as_in(captured: Captured) -> Iterator[None]:
    """Enter the state and the tracing context of a capture, in another thread."""
    with ambient_state.entered_by_thread(captured.request.ambient), tracing.reentered(captured.context):
        yield
