"""Merges torch's own record of a compile in a worker into the records of the client process.

    compile_times()            seconds by function               torch._dynamo.utils.compilation_time_metrics
    calculate_time_spent()     nanoseconds by phase              torch._dynamo.utils.cumulative_time_spent_ns
    get_compilation_metrics()  ``..._us`` of the compile that is under way, from which torch makes its seconds
                               (``inductor_compile_time_s``, ``code_gen_time_s``)
    counters                   of Inductor's passes and lowering, except those that come back with the loaded graphs

A graph that is served from the cache adds no record, because it was not compiled; stock Inductor does the same.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
from torch._dynamo import utils

from fxpool.torch_compat.dynamo import log_state
from fxpool.torch_compat.patching import patched

__all__ = ["CompileTimes", "compiled_here", "merged", "recorded"]

#: Metrics that the client process measures itself.
_OF_THE_ASKER = frozenset(
    ("aot_autograd_cumulative_compile_time_us", "dynamo_cumulative_compile_time_us", "duration_us",
     "distributed_ephemeral_timeout_us", "structured_logging_overhead_us")
)  # fmt: skip
# Cache counters are left to the process that does the lookup: `torch_counters`.
_OF_CACHES = ("aot_autograd", "frames", "stats", "graph_break", "unimplemented", "ok")


class CompileTimes(msgspec.Struct, kw_only=True, omit_defaults=True):
    """torch's record of a compile: `seconds` by function, `spent` (nanoseconds) by phase, `metrics`, `counters`."""

    seconds: dict[str, list[float]] = {}
    spent: dict[str, int] = {}
    metrics: dict[str, int] = {}
    counters: dict[str, dict[str, int]] = {}


@contextlib.contextmanager
def recorded(into: CompileTimes) -> Iterator[None]:
    """Collect torch's records inside the ``with`` block, in a process that compiles one graph at a time."""
    lengths = {name: len(values) for name, values in utils.compilation_time_metrics.items()}
    spent = dict(utils.cumulative_time_spent_ns)
    counted = _counted()
    with _metrics(into.metrics):
        yield
    into.seconds = {
        name: values[lengths.get(name, 0) :]
        for name, values in utils.compilation_time_metrics.items()
        if len(values) > lengths.get(name, 0)
    }
    into.spent = {
        name: int(value - spent.get(name, 0))
        for name, value in utils.cumulative_time_spent_ns.items()
        if value > spent.get(name, 0)
    }
    for section, counts in _counted().items():
        more = {name: count for name, count in (counts - counted.get(section, Counter())).items() if count > 0}
        if more:
            into.counters[section] = more


@contextlib.contextmanager
def _metrics(into: dict[str, int]) -> Iterator[None]:
    """Collect metrics in one of torch's metrics contexts, which no compile has started here."""
    context = utils.get_metrics_context()
    if context.in_progress():  # the compile is in the client itself: metrics are already where they belong
        yield
        return

    def leave(began: int, ended: int, metrics: dict[str, Any], *error: object) -> None:
        for name, value in metrics.items():
            if name.endswith("_us") and name not in _OF_THE_ASKER and isinstance(value, int):
                into[name] = value

    with patched(context, "_on_exit", leave), context:  # the original would log the metrics, as the client does
        yield


def _counted() -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for section, counts in utils.counters.items():
        if section not in _OF_CACHES:
            found[section] = Counter({str(name): n for name, n in counts.items() if "graph_cache" not in str(name)})
    return found


@contextlib.contextmanager
def merged(times: CompileTimes) -> Iterator[None]:
    """Add a record to this process's, around the loading of the graph, which counts a part of it itself."""
    before = _counted()
    with log_state.loading():
        yield
    after = _counted()
    for name, values in times.seconds.items():
        utils.compilation_time_metrics.setdefault(name, []).extend(values)
    for name, nanoseconds in times.spent.items():
        utils.cumulative_time_spent_ns[name] += nanoseconds
    context = utils.get_metrics_context()
    if context.in_progress():  # not in a thread that compiles in the background
        for name, value in times.metrics.items():
            context.increment(name, value)
    for section, counts in times.counters.items():
        loaded = after.get(section, Counter()) - before.get(section, Counter())
        for name, count in counts.items():
            if count > loaded[name]:
                utils.counters[section][name] += count - loaded[name]


@contextlib.contextmanager
def compiled_here() -> Iterator[None]:
    """Drop counts made while loading a graph that this process compiled itself: they are counted already."""
    before = _counted()
    with log_state.loading():
        yield
    for section, counts in _counted().items():
        for name, count in (counts - before.get(section, Counter())).items():
            utils.counters[section][name] -= count
