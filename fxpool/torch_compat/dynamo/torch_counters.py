"""torch's own counters of its caches, which users' tools and tests read.

Each lookup in the cache is counted in ``torch._dynamo.utils.counters``, in the metrics of the compile that is under way
(``get_compilation_metrics()``), and in an artifact of the structured trace (``TORCH_TRACE``).
A graph as Dynamo made it counts as AOTAutograd's, and the one or two graphs that AOTAutograd makes of it as Inductor's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.utils import counters, get_metrics_context
from torch._logging import trace_structured

__all__ = [
    "bypass", "bypass_before_autograd", "compiled", "looked_up", "miss_explained",
    "of_inductors_cache", "saved",
]  # fmt: skip


def compiled() -> None:
    """Count a graph that was compiled as Dynamo made it, as handled by AOTAutograd."""
    counters["aot_autograd"]["total"] += 1
    counters["aot_autograd"]["ok"] += 1


def looked_up(state: str, *, before_autograd: bool, inputs: Sequence[Any], key: str = "") -> None:
    """Count a cache lookup: `state` is ``hit``, ``miss`` or ``guard_miss``; `inputs` are the graph's."""
    plain = "hit" if state == "hit" else "miss"
    if before_autograd:
        if state == "guard_miss":
            counters["aot_autograd"]["autograd_cache_guard_miss"] += 1
        counters["aot_autograd"][f"autograd_cache_{plain}"] += 1
        _metric(f"aotautograd_local_cache_{plain}_count", 1)
        _artifact(f"aotautograd_cache_{plain}", plain, key=key)
    graphs = _graphs(before_autograd, inputs)
    counters["inductor"][f"fxgraph_cache_{plain}"] += graphs
    _metric(f"inductor_fx_local_cache_{plain}_count", graphs)
    for _ in range(graphs):
        _artifact(f"fx_graph_cache_{plain}", plain, key=key)


def bypass(*, before_autograd: bool, inputs: Sequence[Any], reason: str = "") -> None:
    """Count a graph that cannot be looked up at any level."""
    if before_autograd:
        bypass_before_autograd(reason)
    graphs = _graphs(before_autograd, inputs)
    counters["inductor"]["fxgraph_cache_bypass"] += graphs
    for _ in range(graphs):
        _artifact("fx_graph_cache_bypass", "bypass", cache_bypass_reason=reason)


def bypass_before_autograd(reason: str = "") -> None:
    """Count a graph that cannot be looked up as Dynamo made it; its graphs after AOTAutograd are."""
    counters["aot_autograd"]["autograd_cache_bypass"] += 1
    _artifact("aotautograd_cache_bypass", "bypass", cache_bypass_reason=reason)


def saved(*, before_autograd: bool) -> None:
    """Count a graph that was cached."""
    if before_autograd:
        counters["aot_autograd"]["autograd_cache_saved"] += 1


def of_inductors_cache() -> dict[str, int]:
    """Return the numbers of lookups in Inductor's cache: `hits`, `misses` and `bypasses`, fxpool's lookups included."""
    names = {"hits": "hit", "misses": "miss", "bypasses": "bypass"}
    return {name: counters["inductor"][f"fxgraph_cache_{state}"] for name, state in names.items()}


def miss_explained(explanation: Callable[[], str]) -> None:
    """Add the reasons for a miss to the structured trace, as JSON; without a trace, `explanation` is not called."""
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": "fxpool_miss_explained", "encoding": "json"},
        payload_fn=explanation,
    )


def _graphs(before_autograd: bool, inputs: Sequence[Any]) -> int:
    """Return the number of graphs that Inductor sees: two, if there is a backward."""
    trained = any(isinstance(one, torch.Tensor) and one.requires_grad for one in inputs)
    return 2 if before_autograd and trained and torch.is_grad_enabled() else 1


def _metric(name: str, count: int) -> None:
    context = get_metrics_context()
    if context.in_progress():  # not in a thread that compiles in the background
        context.increment(name, count)


def _artifact(name: str, state: str, **facts: str) -> None:
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": "json"},
        payload_fn=lambda: json.dumps({"cache_state": state, **facts}),
    )
