"""Counts of the functions that Dynamo traced in this process, for a person who sees no graph.

Dynamo counts in ``torch._dynamo.utils.counters``; a program may clear them. No error here may fail an explanation.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

__all__ = ["Traced", "traced"]

# Switches that make torch.compile return functions as they are.
_VARIABLES = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")


class Traced(NamedTuple):
    """Numbers of frames that Dynamo began to trace and finished, and of graphs that it gave to a backend.

    `breaks` are the reasons for which it stopped, the first line of each. `off` is the switch that turns Dynamo off, or
    empty.
    """

    frames: int = 0
    finished: int = 0
    graphs: int = 0
    breaks: tuple[str, ...] = ()
    off: str = ""


def traced() -> Traced:
    """Return the counts of this process. Does not import torch."""
    counters: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    frames, stats = counters.get("frames", {}), counters.get("stats", {})
    reasons = [*counters.get("graph_break", ()), *counters.get("unimplemented", ())]
    lines = dict.fromkeys(str(reason).strip().partition("\n")[0] for reason in reasons)
    return Traced(frames.get("total", 0), frames.get("ok", 0), stats.get("unique_graphs", 0), tuple(lines), _off())


def _off() -> str:
    for name in _VARIABLES:
        if os.environ.get(name) == "1":
            return f"{name}=1"
    if getattr(sys.modules.get("torch._dynamo.config"), "disable", False):
        return "torch._dynamo.config.disable"
    stance = getattr(getattr(sys.modules.get("torch._dynamo.eval_frame"), "_stance", None), "stance", "")
    return f'torch.compiler.set_stance("{stance}")' if stance == "force_eager" else ""
