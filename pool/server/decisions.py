"""The scheduler's decisions: actions for the server to carry out, and outcomes for callers.

Jobs and workers are numbers, owners any hashable name; answers and the ways in which workers end are opaque.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Action",
    "Answered",
    "Assign",
    "Cancelled",
    "Deliver",
    "Died",
    "Fork",
    "Grant",
    "Kill",
    "NoWorker",
    "Outcome",
    "Park",
    "Unavailable",
]


# ---------------------------------------------------------------- outcomes


@dataclass(frozen=True)
class Answered:
    """The worker answered, with a result or an exception."""

    answer: object


@dataclass(frozen=True)
class Died:
    """The last worker the job was entitled to ended without an answer; `how` is passed through from the server."""

    how: object


@dataclass(frozen=True)
class Cancelled:
    """The caller withdrew the job, left, or ended; `reason` says which."""

    reason: str


@dataclass(frozen=True)
class Unavailable:
    """No worker can be forked, now or later."""

    reason: str


@dataclass(frozen=True)
class NoWorker:
    """None of `tries` workers begun for the job reached its function; `how` is how the last one ended."""

    how: object
    tries: int


Outcome = Answered | Died | Cancelled | Unavailable | NoWorker


# ---------------------------------------------------------------- actions


@dataclass(frozen=True)
class Fork:
    """Start worker `worker` for `job`. `last` says how the previous attempt's worker ended."""

    worker: int
    job: int
    attempt: int
    last: object = None


@dataclass(frozen=True)
class Assign:
    """Give `job` to a parked worker. `last` as in `Fork`."""

    worker: int
    job: int
    attempt: int
    last: object = None


@dataclass(frozen=True)
class Park:
    """Keep a worker that has no job, for the next job of its kind, until `dismiss`."""

    worker: int


@dataclass(frozen=True)
class Kill:
    """Kill `worker` and its process group."""

    worker: int


@dataclass(frozen=True)
class Grant:
    """`worker` holds a slot again."""

    worker: int


@dataclass(frozen=True)
class Deliver:
    """Tell the caller of `job`, which the scheduler has forgotten. `worker` may still be busy for other callers."""

    job: int
    outcome: Outcome
    attempts: int
    worker: int | None


Action = Fork | Assign | Park | Kill | Grant | Deliver
