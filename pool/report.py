"""What `fxpool status` tells of jobs: plain data."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from fxpool.pool.outcomes import Work, Worker

# Of a longer queue only the beginning is shown.
_LISTED = 1000


def waiting(
    works: Iterable[tuple[int, Work]], with_worker: Container[int], job_of: Callable[[int], int | None], now: float
) -> list[dict[str, Any]]:
    """A row for each of `works` (by key) that a client waits for; those whose job is in `with_worker` are running."""
    return [
        {
            "label": work.ask.label,
            "client": work.client.pid,
            "priority": work.ask.priority,
            "seconds": round(now - work.asked, 3),
            "joined": work.joined,
            "running": (job := job_of(key)) is not None and job in with_worker,
        }
        for key, work in itertools.islice(works, _LISTED)
        if work.client is not None
    ]


def running(worker: Worker, listening: Sequence[Work], now: float) -> dict[str, Any]:
    """A worker's row; `listening` is what clients asked for that its job is, or is a part of.

    `reached` is whether the worker runs the job's function yet.
    """
    return {
        "label": worker.work.ask.label,
        "pid": worker.pid,
        "attempt": worker.attempt,
        "reached": worker.reached is not None,
        "phase": worker.phase,
        "seconds": round(now - worker.begun, 3),
        "sub_job": worker.work.worker is not None,
        "wanted_by": [work.client.pid for work in listening if work.client is not None],
    }
