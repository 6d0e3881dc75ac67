"""Level "fx": AOTAutograd runs in this process, and a worker compiles each graph that it makes.

The seam is Inductor's inner compile. A backward may be compiled later than the forward, at the first backward pass: it
is compiled under the options that were in force at the forward.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxpool import counters, interruptions
from fxpool.codecache.key import toolchain
from fxpool.errors import CannotReturnError, CannotTravelError, PoolError, RecordedError
from fxpool.lowering.artifact import load
from fxpool.lowering.artifact.entry_parts import Parts
from fxpool.lowering.core import switched_off
from fxpool.lowering.core.attempt import Attempt, Outcome
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.fallback import failed_levels
from fxpool.lowering.fallback.eager import RUNS_EAGERLY, run_eagerly
from fxpool.lowering.request import capture
from fxpool.lowering.request.captured import Captured
from fxpool.torch_compat.dynamo import frames, tracing
from fxpool.torch_compat.inductor import aot, inner
from fxpool.torch_compat.state import configs

#: `fallback.chain.compile_captured`, which is above this module.
CompileCaptured = Callable[[Captured, Attempt, Callable[[Parts], Any]], Any]


def compile_each(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    attempt: Attempt,
    compile_captured: CompileCaptured,
    *,
    at_home: bool = False,
) -> Callable[..., Any]:
    """Return the callable for a Dynamo graph whose AOTAutograd graphs go through `compile_captured`.

    `at_home`: a worker failed to compile the Dynamo graph. Its AOTAutograd graphs are compiled in this process at once:
    if the error is the user's, another worker would only meet it again.
    """

    frame = frames.current_frame()

    def inner_compile(graph: Any, example_inputs: Sequence[Any], **arguments: Any) -> Any:
        with interruptions.held_back(), configs.patched(attempt.options.inductor):
            through = None if at_home else compile_captured
            return _compile_one(graph, example_inputs, arguments, attempt, through, frame)

    with interruptions.let_through():
        return inner.compile_with_inner(aot.copy_of(gm), inputs, inner_compile)


def _compile_one(
    graph: Any,
    inputs: Sequence[Any],
    arguments: dict[str, Any],
    attempt: Attempt,
    compile_captured: CompileCaptured | None,
    frame: frames.Frame | None,
) -> Any:
    if inner.count_calls(graph) == 0:
        return inner.compile_as_torch_does(graph, inputs, arguments)  # returns the graph itself: nothing to compile
    suffix = "backward" if arguments.get("is_backward") else "forward"
    # The outcome is "in_process" unless there is a hit or a worker: it is recorded before the last level runs.
    part = Attempt(f"{attempt.label} {suffix}", attempt.options, level="fx", outcome=Outcome.IN_PROCESS)
    try:
        compiled = _compile_part(graph, inputs, arguments, part, compile_captured, frame)
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
    compile_captured: CompileCaptured | None,
    frame: frames.Frame | None,
) -> Any:
    cause: BaseException | None = None
    started = time.perf_counter()
    try:
        if compile_captured is not None:
            return _travel(graph, inputs, arguments, part, compile_captured, frame)
    except CannotTravelError as error:
        part.step_down(f"fx:{error.reason}", error)
    except CannotReturnError as error:
        part.step_down(f"fx:return:{error.reason}", error)
    except RUNS_EAGERLY as error:
        if not (arguments.get("is_backward") or isinstance(error, RecordedError)):
            raise  # the whole Dynamo graph runs eagerly
        # The forward is already in use, and this may be the user's call of backward().
        return run_eagerly(inner.as_output(graph), part, error)
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
    counters.count("compiles", "in_process")
    with (
        part.timed("compile"),
        toolchain.of_stock(runtime.toolchain_directory(part.store())),
        interruptions.let_through(),
    ):
        with configs.without_torchs_caches() if part.has_own_code else contextlib.nullcontext():
            compiled = inner.compile_as_torch_does(graph, inputs, arguments)
    if cause is not None:
        failed_levels.remember(part, cause)
    return compiled


def _travel(
    graph: Any,
    inputs: Sequence[Any],
    arguments: dict[str, Any],
    part: Attempt,
    compile_captured: CompileCaptured,
    frame: frames.Frame | None,
) -> Any:
    if part.options.mode == "normal":
        raise CannotTravelError("mode_normal", "AOTAutograd's graphs are compiled in the process that traces them")
    captured = capture.capture_inner(
        graph, inputs, inner.plain_arguments(arguments), label=part.label, into=part.destination(), frame=frame
    )

    def load_parts(parts: Parts) -> Any:
        return load.load_inner(parts, captured, arguments)

    return compile_captured(captured, part, load_parts)
