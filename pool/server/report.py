"""Rows about jobs and memory for `fxpool status` and the dashboard, as plain data."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fxpool.pool.host import memory
from fxpool.pool.server.results import Work, Worker

__all__ = ["cgroup", "running", "shares", "waiting"]

# The largest number of rows for the queue.
_LISTED = 1000


def waiting(
    works: Iterable[tuple[int, Work]],
    with_worker: Container[int],
    job_of: Callable[[int], int | None],
    order: Sequence[int],
    now: float,
) -> list[dict[str, Any]]:
    """Return a row for each client's job in `works` (by key), with `running` set if its job is in `with_worker`.

    `position` is the job's position in the queue, `order`, from 1; 0 if it is not queued.
    """
    places = {job: place for place, job in enumerate(order, 1)}
    return [
        {
            "job": job_of(key),
            "position": places.get(job_of(key) or 0, 0),
            "alone": work.spec.exclusive,
            "spare": work.spec.best_effort,
            "label": work.spec.label,
            "client": work.client.pid,
            "priority": work.spec.priority,
            "seconds": round(now - work.submitted, 3),
            "joined": work.joined,
            "running": (job := job_of(key)) is not None and job in with_worker,
        }
        for key, work in itertools.islice(works, _LISTED)
        if work.client is not None
    ]


def running(worker: Worker, listening: Sequence[Work], taken: Mapping[int, int], now: float) -> dict[str, Any]:
    """Return a worker's row. `listening` are the clients' jobs that its job belongs to; `taken` maps pids to bytes.

    In the row, `reached` says whether the worker has reached the job's function.
    """
    above = worker.work.worker
    return {
        "job": worker.job,
        "part_of": above.job if above is not None else 0,
        "alone": worker.work.spec.exclusive,
        "stopped": worker.stopped,
        "memory": sum(taken.get(pid, 0) for pid in memory.tree(worker.pid)) if worker.pid is not None else 0,
        "label": worker.work.spec.label,
        "pid": worker.pid,
        "attempt": worker.attempt,
        "reached": worker.reached is not None,
        "phase": worker.phase,
        "seconds": round(now - worker.begun, 3) if worker.pid is not None else 0.0,
        "sub_job": worker.work.worker is not None,
        "wanted_by": [work.client.pid for work in listening if work.client is not None],
    }


def shares(taken: Mapping[int, int], zygote: int) -> dict[str, int]:
    """Return the bytes of this process (the server), of the zygote, and of all others (workers and compilers)."""
    server, forking = taken.get(os.getpid(), 0), taken.get(zygote, 0)
    return {"server": server, "zygote": forking, "workers": sum(taken.values()) - server - forking}


def cgroup() -> str:
    """Return the server's cgroups. The server ends with its cgroup (a container, a service)."""
    try:
        return Path("/proc/self/cgroup").read_text().strip()
    except OSError:
        return ""
