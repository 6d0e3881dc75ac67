"""Graphs of programs that call Inductor directly (``standalone_compile``, ``compile_fx``), after ``fxpool.install()``.

Each graph after AOTAutograd that torch's own caches do not have goes through fxpool's cache and pool, as at the level
"fx" of the fallback chain. torch then finishes it, and puts it into its caches and artifacts. A graph that no worker
can compile is lowered in this process, as without fxpool, and counted.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from fxpool import config, interruptions
from fxpool.errors import CannotReturnError, CannotTravelError, PoolError, RecordedError
from fxpool.lowering.artifact import load
from fxpool.lowering.compiling import eager, refusals
from fxpool.lowering.compiling.graph_compile import GraphCompile
from fxpool.lowering.core import options as call_options
from fxpool.lowering.core import switched_off
from fxpool.lowering.core.attempt import Attempt, Outcome
from fxpool.lowering.request import capture
from fxpool.torch_compat.dynamo import frames, tracing
from fxpool.torch_compat.inductor import aot, aot_graph
from fxpool.torch_compat.operators import operator_tables
from fxpool.torch_compat.state import configs
from fxpool.watch import configured_watchers

__all__ = ["compile_graph"]

_numbers = itertools.count()


def compile_graph(
    graph: Any, inputs: Sequence[Any], arguments: dict[str, Any], stock: Callable[[], Any], decomposed: bool
) -> Any:
    """Return Inductor's output for a graph after AOTAutograd: from the cache, a worker, or by `stock`, in this process.

    `decomposed`: the call has its own table of decompositions, which a worker does not have.

    Raises:
        FxpoolError: a worker cannot compile the graph, under ``strict``.
        PoolError: the graph killed its workers. It is not compiled in this process, which it might kill, too.
        Exception: any error of the compile.
    """
    settings = config.current()
    options = call_options.parse(None, None, settings)
    if options.mode == "normal" or aot_graph.count_calls(graph) == 0:
        return stock()
    operator_tables.watch()
    configured_watchers.attach()
    suffix = "backward" if arguments.get("is_backward") else "forward"
    # The outcome is "in_process" unless there is a hit or a worker, as in `fallback.aot_graphs`.
    attempt = Attempt(f"direct {next(_numbers)} {suffix}", options, settings, level="fx", outcome=Outcome.IN_PROCESS)
    started = time.perf_counter()
    try:
        with interruptions.held_back():
            compiled = _compile(graph, inputs, arguments, stock, decomposed, attempt)
    except BaseException as error:
        attempt.report("failed", type(error).__name__)
        raise
    finally:
        attempt.seconds["total"] = time.perf_counter() - started
        attempt.record()
    attempt.report()
    return compiled


def _compile(
    graph: Any,
    inputs: Sequence[Any],
    arguments: dict[str, Any],
    stock: Callable[[], Any],
    decomposed: bool,
    attempt: Attempt,
) -> Any:
    cause: BaseException | None = None
    try:
        if decomposed:
            raise CannotTravelError("decompositions", "an argument of compile_fx")
        return _through_cache(graph, inputs, arguments, attempt)
    except CannotTravelError as error:
        attempt.step_down(f"fx:{error.reason}", error)
    except CannotReturnError as error:
        attempt.step_down(f"fx:return:{error.reason}", error)
    except RecordedError:
        pass  # the program may ask for the artifact, which eager code has not
    except eager.DEADLY:
        raise
    except PoolError as error:
        attempt.step_down(f"fx:pool:{type(error).__name__}", error)
        switched_off.say_without_pool(error)
    except tracing.control_flow_errors():
        raise
    except Exception as error:  # Inductor's error, or this level's: compiling in this process decides
        attempt.failed(error, "fx:compile_error:{}")
        cause = error
    with eager.compiling_as_stock(attempt, with_caches=True), aot.in_process_only():
        compiled = stock()
    if cause is not None:
        refusals.remember_level(attempt, cause)
    return compiled


def _through_cache(graph: Any, inputs: Sequence[Any], arguments: dict[str, Any], attempt: Attempt) -> Any:
    plain = aot_graph.plain_arguments(arguments)
    # `standalone_compile` has kernels timed during the compile, which would take a worker that sees the device. Those
    # of an entry are timed at the first calls.
    with configs.patched({} if plain.get("cpp_wrapper") else {"triton.autotune_at_compile_time": None}):
        captured = capture.capture_inner(
            graph, inputs, plain, label=attempt.label, into=attempt.destination, frame=frames.current_frame()
        )
    captured.saved_by_torch = True
    return GraphCompile(captured, attempt, lambda parts: load.load_for_torch(parts, captured, arguments)).run()
