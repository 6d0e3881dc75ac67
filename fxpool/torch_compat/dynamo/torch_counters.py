"""torch's own counters of its caches (``torch._dynamo.utils.counters``), which its users' tools and tests read.

A graph as Dynamo made it counts as AOTAutograd's, and the one or two that AOTAutograd makes of it as Inductor's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._dynamo.utils import counters

__all__ = ["bypass", "bypass_before_autograd", "looked_up", "saved"]


def looked_up(state: str, *, before_autograd: bool, inputs: Sequence[Any]) -> None:
    """Count a look into the cache: `state` is ``hit``, ``miss`` or ``guard_miss``; `inputs` are the graph's."""
    plain = "hit" if state == "hit" else "miss"
    if before_autograd:
        if state == "guard_miss":
            counters["aot_autograd"]["autograd_cache_guard_miss"] += 1
        counters["aot_autograd"][f"autograd_cache_{plain}"] += 1
    counters["inductor"][f"fxgraph_cache_{plain}"] += _graphs(before_autograd, inputs)


def bypass(*, before_autograd: bool, inputs: Sequence[Any]) -> None:
    """Count a graph that can't be looked for, in any form."""
    if before_autograd:
        counters["aot_autograd"]["autograd_cache_bypass"] += 1
    counters["inductor"]["fxgraph_cache_bypass"] += _graphs(before_autograd, inputs)


def bypass_before_autograd() -> None:
    """Count a graph that can't be looked for as Dynamo made it, and is after AOTAutograd."""
    counters["aot_autograd"]["autograd_cache_bypass"] += 1


def saved(*, before_autograd: bool) -> None:
    """Count a graph that was kept."""
    if before_autograd:
        counters["aot_autograd"]["autograd_cache_saved"] += 1


def _graphs(before_autograd: bool, inputs: Sequence[Any]) -> int:
    """How many graphs Inductor sees: two, where there is a backward."""
    trained = any(isinstance(one, torch.Tensor) and one.requires_grad for one in inputs)
    return 2 if before_autograd and trained and torch.is_grad_enabled() else 1
