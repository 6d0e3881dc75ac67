"""Extends timeouts of collectives by the time that a hit saved.

One rank may be served a graph that another rank compiles for minutes. The first rank then waits in a collective, and
NCCL would time out. As after a hit of Inductor's own cache, all groups of this process get a longer timeout for their
next collective. Only NCCL's backend supports this.
"""

from __future__ import annotations

import datetime
import sys

from torch._dynamo.utils import get_metrics_context

__all__ = ["grow"]


def grow(seconds: float) -> int:
    """Extend timeouts of collectives by whole seconds; return by how many, 0 if the program is not distributed."""
    context = get_metrics_context()
    if context.in_progress():  # not in a thread that compiles in the background
        context.increment("distributed_ephemeral_timeout_us", int(seconds * 1e6))
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    distributed.distributed_c10d._add_ephemeral_timeout_for_all_pgs(datetime.timedelta(seconds=int(seconds)))
    return int(seconds)
