"""What the scheduler decides (actions, for the server to carry out) and how jobs end (outcomes, for their askers).

Jobs, workers and owners are numbers or any hashable name; answers and the ways in which workers end are opaque.
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
    """The last of the workers the job was entitled to ended without an answer; `how` is the caller's."""

    how: object


@dataclass(frozen=True)
class Cancelled:
    reason: str


@dataclass(frozen=True)
class Unavailable:
    """No worker can be forked, now or later."""

    reason: str


@dataclass(frozen=True)
class NoWorker:
    """So many workers were begun for the job, and none came as far as its function; `how` is how the last ended."""

    how: object
    tries: int


Outcome = Answered | Died | Cancelled | Unavailable | NoWorker


# ---------------------------------------------------------------- actions


@dataclass(frozen=True)
class Fork:
    """Start worker `worker` for `job`. `last` says how the worker of the attempt before ended."""

    worker: int
    job: int
    attempt: int
    last: object = None


@dataclass(frozen=True)
class Assign:
    """Give `job` to a worker that was parked. As `Fork` otherwise."""

    worker: int
    job: int
    attempt: int
    last: object = None


@dataclass(frozen=True)
class Park:
    """Keep a worker that has no job any more; the next of its kind may come. `dismiss` ends that."""

    worker: int


@dataclass(frozen=True)
class Kill:
    worker: int


@dataclass(frozen=True)
class Grant:
    """`worker` holds a slot again."""

    worker: int


@dataclass(frozen=True)
class Deliver:
    """Tell who asked as `job`; the scheduler has forgotten that. `worker` may still be busy for others."""

    job: int
    outcome: Outcome
    attempts: int
    worker: int | None


Action = Fork | Assign | Park | Kill | Grant | Deliver
