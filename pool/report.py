"""Job records for `fxpool status`, as plain data."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from fxpool.pool.outcomes import Work, Worker

# Rows listed of a longer queue.
_LISTED = 1000


def waiting(
    works: Iterable[tuple[int, Work]], with_worker: Container[int], job_of: Callable[[int], int | None], now: float
) -> list[dict[str, Any]]:
    """Return a row for each client's job in `works` (by key), `running` if its job is in `with_worker`."""
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
    """Return a worker's row; `listening` are the clients' jobs that its job is, or is a part of.

    `reached` tells whether the worker has reached the job's function.
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
