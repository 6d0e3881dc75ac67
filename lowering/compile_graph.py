"""Compiles one Dynamo graph of ``torch.compile(backend="fxpool")``: from the call's options to the callable."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fxpool import config, counters, interruptions
from fxpool.lowering.compiling import graph_recording
from fxpool.lowering.core import options as call_options
from fxpool.lowering.core.attempt import Attempt, Outcome
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.fallback import chain
from fxpool.torch_compat.dynamo import tracing
from fxpool.torch_compat.inductor import cache_artifacts, graph_forms
from fxpool.torch_compat.operators import operator_tables
from fxpool.watch import configured_watchers

if TYPE_CHECKING:
    import torch

    from fxpool.lowering.regions import compile_pieces

__all__ = ["compile_graph"]

_numbers = itertools.count()


def compile_graph(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], mode: str | None, options: Mapping[str, Any] | None
) -> Callable[..., Any]:
    """Return the callable that Dynamo calls in the graph's place: from the cache, a worker, or a lower level.

    Raises:
        ConfigurationError: an unknown option or mode.
        NoCompilerError: there is no C++ compiler.
    """
    runtime.freeze_objects()  # if the backend was not looked up by its name
    operator_tables.watch()
    cache_artifacts.watch_clearing(_cleared)
    settings = config.current()
    parsed = call_options.parse(mode, options, settings)
    if graph_recording.is_on(settings):
        parsed = dataclasses.replace(parsed, mode="subprocess")  # as the machine that compiles them
    if parsed.mode != "subprocess":
        runtime.end_start_ahead()
    configured_watchers.attach()
    attempt = Attempt(_label(), parsed, settings)
    try:
        with interruptions.held_back(), attempt.timed("total"), parsed.in_force():
            cutter = _in_pieces if parsed.regions != "off" else None
            gm, inputs, restored = graph_forms.as_from_dynamo(gm, inputs)
            return restored(chain.compile_with_fallback(gm, inputs, attempt, in_pieces=cutter))
    finally:
        attempt.record()
        if attempt.outcome is not Outcome.ASYNC:  # the background thread reports
            attempt.report()


def _in_pieces(gm: torch.fx.GraphModule, inputs: Sequence[Any], attempt: Attempt) -> compile_pieces.InPieces | None:
    from fxpool.lowering.regions import compile_pieces, cut_points  # only if pieces are wanted

    try:
        return compile_pieces.InPieces(gm, inputs, attempt)
    except cut_points.UncuttableError as error:
        counters.count("regions", f"whole:{error.reason}")
        return None


def _cleared(cache: str) -> None:
    from fxpool.lowering.artifact import torch_cache_clearing as entries  # only in programs that clear caches

    entries.cleared(cache)


def _label() -> str:
    number = next(_numbers)
    compile_id = tracing.compile_label()
    return f"graph {number} [{compile_id}]" if compile_id else f"graph {number}"
