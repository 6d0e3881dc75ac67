"""Level "aot": the graph as Dynamo made it, whole, in pieces or in stages."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from fxpool.codecache.key import cacheable
from fxpool.errors import CannotTravelError, NotKeptError, PoolUnavailableError, RecordedError
from fxpool.lowering.artifact import load
from fxpool.lowering.artifact.entry_parts import Parts
from fxpool.lowering.compiling import eager, graph_recording, refusals
from fxpool.lowering.compiling.graph_compile import GraphCompile, complete
from fxpool.lowering.core.attempt import Attempt
from fxpool.lowering.request import capture
from fxpool.lowering.request.captured_graph import Captured
from fxpool.lowering.request.compile_request import CODE_DIFFERS
from fxpool.torch_compat.dynamo import standalone, torch_counters, tracing
from fxpool.torch_compat.state import configs

if TYPE_CHECKING:
    import torch

    from fxpool.lowering.background.compiles import Stage
    from fxpool.lowering.regions.compile_pieces import InPieces

__all__ = ["Cutter", "compile_graph"]

Call = Callable[..., Any]

#: Cuts a graph (with its inputs, for an attempt); None if it stays whole. Passed down, as pieces go through the chain.
Cutter = Callable[["torch.fx.GraphModule", Sequence[Any], Attempt], "InPieces | None"]


def compile_graph(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], attempt: Attempt, in_pieces: Cutter | None = None
) -> Call:
    """Return the callable for a graph; `in_pieces` cuts it. Raises why this level cannot compile it."""

    def of(captured: Captured) -> GraphCompile:
        return GraphCompile(captured, attempt, functools.partial(_load, gm, attempt, captured, written))

    written = standalone.is_bundle_requested()
    if written:  # Dynamo writes a file: it needs the whole graph, compiled when this returns
        in_pieces = None
    if written or not attempt.by_workers or not (attempt.options.asynchronous or attempt.options.stages):
        cut = in_pieces(gm, inputs, attempt) if in_pieces is not None else None
        served = _now(cut, attempt) if cut is not None else None
        if served is not None:
            return served
        with attempt.timed("capture"):
            graph = of(_capture(gm, inputs, attempt))
        if attempt.options.mode == "normal":
            served = graph.look_up()
            return served if served is not None else _here(graph, gm, inputs)
        bypass = graph.captured.bypass
        if bypass is not None and bypass.reason in cacheable.OF_DYNAMOS_GRAPH:
            # The whole graph cannot be cached; the graphs that AOTAutograd makes of it can.
            if bypass.reason not in cacheable.SWITCHED_OFF:
                torch_counters.bypass_before_autograd(bypass.reason)
            raise CannotTravelError(bypass.reason, bypass.detail)
    else:
        from fxpool.lowering.background import stages  # threads and swaps, which plain modes do not need

        with attempt.timed("capture"):
            of_call = stages.of_call(attempt, lambda: _capture(gm, inputs, attempt))
        if graph_recording.is_on(attempt.settings):
            _record_all(of_call, attempt)
        graph = of(of_call[0].captured)
        if graph.captured.stays is None:
            cutter = functools.partial(in_pieces, gm, inputs, attempt) if in_pieces is not None else None
            return _by_stages(gm, of_call, attempt, of, cutter)
    try:
        return graph.run()
    except CannotTravelError as error:
        # The worker has other code than the program. This process compiles with the right code, and caches the result.
        if graph.captured.key is None or not _is_of_code(error, graph.captured):
            raise
        attempt.step_down(error.reason, error)
    except PoolUnavailableError as error:
        # The next process may find no workers either: the result of compiling here is cached for it.
        if graph.captured.key is None:
            raise
        attempt.step_down_without_pool(error)
    return _here(graph, gm, inputs)


def _capture(gm: torch.fx.GraphModule, inputs: Sequence[Any], attempt: Attempt) -> Captured:
    """Capture the graph. Raises NotKeptError if it cannot be cached, and the program asks for that error."""
    captured = capture.capture(gm, inputs, label=attempt.label, into=attempt.destination)
    bypass = captured.bypass
    if bypass is None or bypass.reason in cacheable.SWITCHED_OFF:
        return captured
    if attempt.options.strict or configs.must_be_kept():
        raise NotKeptError(bypass.reason, bypass.detail)
    return captured


def _load(gm: torch.fx.GraphModule, attempt: Attempt, captured: Captured, written: bool, parts: Parts) -> Call:
    """Load the graph; let Dynamo write it into a file if `written`, unless it has its own parameters."""
    with attempt.timed("load"):
        call = load.load_aot(parts, captured, gm.forward)
        if not written or captured.lifted:  # the file would not contain the parameters
            return call
        from fxpool.lowering.artifact import portable_graph  # only for programs that write such files

        return standalone.give_precompile_bundle(gm, call, functools.partial(portable_graph.bundle, parts, captured))


def _here(graph: GraphCompile, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Call:
    """Compile a graph that is not in the store itself in this process, and cache it if possible."""
    eager.check(graph.attempt)
    call: Call = graph.compile_live(gm, inputs)
    return call


def _is_of_code(error: CannotTravelError, captured: Captured) -> bool:
    return error is captured.stays or error.reason in (CODE_DIFFERS, refusals.NOT_IMPORTABLE)


def _now(cut: InPieces, attempt: Attempt) -> Call | None:
    """Return the callable for a graph in pieces; None if a piece fails, as the whole graph may still compile."""
    try:
        return cut.now()
    except tracing.control_flow_errors():
        raise
    except Exception as error:
        attempt.failed(error, "pieces:{}")
        return None


# ---------------------------------------------------------------- stages


def _record_all(stages: Sequence[Stage], attempt: Attempt) -> NoReturn:
    """Record the graph under the options of each stage; see `recording.record`."""
    for stage in stages:
        complete(stage.captured, attempt)
        with contextlib.suppress(RecordedError):
            graph_recording.record(stage.captured, attempt)
    raise RecordedError(attempt.label)


def _by_stages(
    gm: torch.fx.GraphModule,
    stages: Sequence[Stage],
    attempt: Attempt,
    of: Callable[[Captured], GraphCompile],
    in_pieces: Callable[[], InPieces | None] | None,
) -> Call:
    """Return the best stage in the cache; better stages, or all of them, are compiled in the background.

    If no stage is in the cache and the graph can be cut, its pieces come before the first stage.
    """
    from fxpool.lowering.background import compiles  # as in `compile_graph`

    served, at = None, len(stages)
    with attempt.timed("lookup"):
        while served is None and at:
            at -= 1
            # An asynchronous call waits for neither a compile nor the remote: the background thread looks there.
            served = of(stages[at].captured).look_up(count_misses=at == 0, shared=not attempt.options.asynchronous)
    attempt.stage = stages[at].number
    cut: InPieces | None = None
    if served is None:
        eager.check(attempt)
        if in_pieces is not None:
            cut = in_pieces()
        if cut is not None:
            served = cut.cached() if attempt.options.asynchronous else _now(cut, attempt)
        if served is not None:
            cut = None
            at, attempt.stage = -1, compiles.PIECES
        elif attempt.options.asynchronous:
            at = -1
        else:
            cut = None
            complete(stages[0].captured, attempt)
            served = of(stages[0].captured).compile()
    later = stages[at + 1 :]
    if not later:
        assert served is not None
        return served
    for stage in later:
        complete(stage.captured, attempt)
    if served is not None:
        attempt.report()
    return compiles.begin(gm, later, attempt, served, cut.later if cut is not None else None)
