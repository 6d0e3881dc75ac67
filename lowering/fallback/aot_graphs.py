"""Level "fx": AOTAutograd runs in this process, and a worker compiles each graph that it makes.

The seam is Inductor's inner compile. A backward may be compiled later than the forward, at the first backward pass: it
is compiled under the options that were in force at the forward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxpool import interruptions
from fxpool.errors import CannotReturnError, CannotTravelError, PoolError, RecordedError
from fxpool.lowering.artifact import load
from fxpool.lowering.compiling import eager, refusals
from fxpool.lowering.compiling.eager import RUNS_EAGERLY, run_eagerly
from fxpool.lowering.compiling.graph_compile import GraphCompile
from fxpool.lowering.core import switched_off
from fxpool.lowering.core.attempt import Attempt, Outcome
from fxpool.lowering.request import capture
from fxpool.torch_compat.dynamo import frames, tracing
from fxpool.torch_compat.inductor import aot, aot_graph


def compile_each(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    attempt: Attempt,
    *,
    at_home: bool = False,
) -> Callable[..., Any]:
    """Return the callable for a Dynamo graph whose AOTAutograd graphs are compiled one by one.

    `at_home`: a worker failed to compile the Dynamo graph. Its AOTAutograd graphs are compiled in this process at once:
    if the error is the user's, another worker would only meet it again.
    """

    frame = frames.current_frame()

    def inner_compile(graph: Any, example_inputs: Sequence[Any], **arguments: Any) -> Any:
        with interruptions.held_back(), attempt.options.in_force():
            return _compile_one(graph, example_inputs, arguments, attempt, frame, at_home)

    with interruptions.let_through():
        return aot_graph.compile_with_inner(aot.copy_of(gm), inputs, inner_compile)


def _compile_one(
    graph: Any,
    inputs: Sequence[Any],
    arguments: dict[str, Any],
    attempt: Attempt,
    frame: frames.Frame | None,
    at_home: bool,
) -> Any:
    if aot_graph.count_calls(graph) == 0:
        return aot_graph.compile_as_torch_does(graph, inputs, arguments)  # returns the graph itself: nothing to compile
    suffix = "backward" if arguments.get("is_backward") else "forward"
    # The outcome is "in_process" unless there is a hit or a worker: it is recorded before the last level runs.
    part = attempt.part(label=f"{attempt.label} {suffix}", level="fx", outcome=Outcome.IN_PROCESS, function="", stage=0)
    try:
        compiled = _compile_part(graph, inputs, arguments, part, frame, at_home)
    except BaseException as error:
        part.report("failed", type(error).__name__)
        raise
    part.report()
    return compiled


def _compile_part(
    graph: Any,
    inputs: Sequence[Any],
    arguments: dict[str, Any],
    part: Attempt,
    frame: frames.Frame | None,
    at_home: bool,
) -> Any:
    cause: BaseException | None = None
    started = time.perf_counter()
    try:
        if not at_home:
            return _travel(graph, inputs, arguments, part, frame)
    except CannotTravelError as error:
        part.step_down(f"fx:{error.reason}", error)
    except CannotReturnError as error:
        part.step_down(f"fx:return:{error.reason}", error)
    except RUNS_EAGERLY as error:
        if not (arguments.get("is_backward") or isinstance(error, RecordedError)):
            raise  # the whole Dynamo graph runs eagerly
        # The forward is already in use, and this may be the user's call of backward().
        return run_eagerly(aot_graph.as_output(graph), part, error)
    except PoolError as error:
        part.step_down(f"fx:pool:{type(error).__name__}", error)
        switched_off.say_without_pool(error)
    except tracing.control_flow_errors():
        raise
    except Exception as error:  # Inductor's error, or this level's: compiling in this process decides
        part.failed(error, "fx:compile_error:{}")
        cause = error
    finally:
        part.seconds["total"] = time.perf_counter() - started
        part.record()
    with eager.compiling_as_stock(part):
        compiled = aot_graph.compile_as_torch_does(graph, inputs, arguments)
    if cause is not None:
        refusals.remember_level(part, cause)
    return compiled


def _travel(
    graph: Any,
    inputs: Sequence[Any],
    arguments: dict[str, Any],
    part: Attempt,
    frame: frames.Frame | None,
) -> Any:
    if part.options.mode == "normal":
        raise CannotTravelError("mode_normal", "AOTAutograd's graphs are compiled in the process that traces them")
    captured = capture.capture_inner(
        graph, inputs, aot_graph.plain_arguments(arguments), label=part.label, into=part.destination, frame=frame
    )
    return GraphCompile(captured, part, lambda parts: load.load_inner(parts, captured, arguments)).run()
