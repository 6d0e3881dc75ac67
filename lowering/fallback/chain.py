"""The fallback chain of one graph: the levels at which it can be compiled, in order.

    level "aot"           the graph as Dynamo made it    a worker runs AOTAutograd and Inductor    `dynamo_graph`
    level "fx"            the graphs AOTAutograd makes   a worker runs Inductor on each of them    `aot_graphs`
    level "in_process"    this process                   as if fxpool were not used

Each level goes through the same guarded cache. A graph that killed workers leaves the chain and runs eagerly. The
user's own errors (a graph that Inductor cannot compile) are raised by the last level as without fxpool, with the
worker's error as their context.

Modules that only a miss needs are imported inside the functions that use them: they would add half to the 0.05 s of a
hit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from fxpool import failures, interruptions
from fxpool.errors import CannotReturnError, CannotTravelError, PoolError
from fxpool.lowering.compiling import eager, refusals
from fxpool.lowering.compiling.eager import RUNS_EAGERLY
from fxpool.lowering.core.attempt import Attempt, Outcome
from fxpool.lowering.fallback import dynamo_graph
from fxpool.lowering.fallback.dynamo_graph import Cutter
from fxpool.torch_compat.dynamo import standalone, tracing
from fxpool.torch_compat.inductor import aot

if TYPE_CHECKING:
    import torch

__all__ = ["compile_with_fallback"]

Call = Callable[..., Any]


def compile_with_fallback(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    attempt: Attempt,
    started: Callable[[], Any] | None = None,
    *,
    in_pieces: Cutter | None = None,
) -> Any:
    """Return the callable for one Dynamo graph, from the first level that works.

    `inputs` are the graph's, fake or real. `started` waits for the first level's result, if the caller has already
    started that level; the result is returned unchanged. `in_pieces` cuts the graph if pieces are wanted. Raises what
    compiling in this process raises, and `attempt`'s errors under ``strict``.
    """
    cause: BaseException | None = None
    try:
        return started() if started is not None else dynamo_graph.compile_graph(gm, inputs, attempt, in_pieces)
    except CannotTravelError as error:
        attempt.step_down(error.reason, error)
    except CannotReturnError as error:
        attempt.step_down(f"return:{error.reason}", error)
        if refusals.compiles_nowhere(error):
            return _in_process(gm, inputs, attempt, None)
    except RUNS_EAGERLY as error:
        return eager.run_eagerly(gm.forward, attempt, error)
    except PoolError as error:
        return _without_pool(gm, inputs, attempt, error)
    except tracing.control_flow_errors():
        raise
    except Exception as error:  # if it is AOTAutograd's or Inductor's, the levels below decide if it is the user's
        cause = error
        if attempt.failed(error) == "home":
            return _in_process(gm, inputs, attempt, cause)
    if standalone.is_bundle_requested():  # AOTAutograd has to bundle Inductor's output in this process
        return _in_process(gm, inputs, attempt, cause)
    from fxpool.lowering.fallback import aot_graphs  # a hit saves 0.01 s

    try:
        attempt.level = "fx"
        call = aot_graphs.compile_each(gm, inputs, attempt, at_home=cause is not None)
        attempt.outcome = Outcome.PARTS
        if cause is not None:  # the level failed, not the graph
            refusals.remember_level(attempt, cause)
        return call
    except CannotTravelError as error:
        attempt.step_down(error.reason, error)
        return _in_process(gm, inputs, attempt, cause or error)
    except RUNS_EAGERLY as error:
        return eager.run_eagerly(gm.forward, attempt, error)
    except PoolError as error:
        return _without_pool(gm, inputs, attempt, error)
    except tracing.control_flow_errors():
        raise
    except Exception as error:
        interruptions.pass_on(error)
        if cause is None:
            raise
        if failures.of(error) is failures.Kind.GRAPH:  # not if this host has no compiler, or no memory at the moment
            refusals.remember_level(attempt, cause, nowhere=True)
        _raise(error, cause)


def _without_pool(gm: torch.fx.GraphModule, inputs: Sequence[Any], attempt: Attempt, error: PoolError) -> Call:
    attempt.step_down_without_pool(error)
    return _in_process(gm, inputs, attempt, error)


def _in_process(gm: torch.fx.GraphModule, inputs: Sequence[Any], attempt: Attempt, cause: BaseException | None) -> Call:
    """The last level: compile as ``backend="inductor"`` does."""
    attempt.level = "in_process"
    try:
        with eager.compiling_as_stock(attempt):
            compiled = aot.compile_graph(gm, inputs, keep_result=False)
    except Exception as error:
        _raise(error, cause)
    assert compiled.callable is not None
    return compiled.callable


def _raise(error: Exception, cause: BaseException | None) -> NoReturn:
    """Raise what compiling here raised; if it is of the class of the worker's error, that one, with its frames."""
    if cause is not None and type(cause) is type(error):
        raise cause from None
    raise error from cause
