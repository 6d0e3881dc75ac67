"""The scheduler's decisions: actions for the server to carry out, and outcomes for callers.

Jobs and workers are numbers. Answers of workers and descriptions of their exit are passed through unread.
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
    "Recall",
    "Send",
    "Unavailable",
]


# ---------------------------------------------------------------- outcomes


@dataclass(frozen=True)
class Answered:
    """The worker answered, with a result or an exception."""

    answer: object


@dataclass(frozen=True)
class Died:
    """The worker of the job's last attempt ended without an answer. `exit_info` is the server's description of that."""

    exit_info: object


@dataclass(frozen=True)
class Cancelled:
    """The caller withdrew the job or ended; `reason` says which."""

    reason: str


@dataclass(frozen=True)
class Unavailable:
    """No worker can be forked, now or later."""

    reason: str


@dataclass(frozen=True)
class NoWorker:
    """`tries` workers were started for the job, and all died before its function; `exit_info` is the last one's."""

    exit_info: object
    tries: int


Outcome = Answered | Died | Cancelled | Unavailable | NoWorker


# ---------------------------------------------------------------- actions


@dataclass(frozen=True)
class Fork:
    """Start worker `worker` for `job`. `last` describes the exit of the previous attempt's worker."""

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
    """Keep a worker without a job for the next job of its kind, until `dismiss`."""

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
    """Report the outcome of `job` to its caller. The scheduler has dropped the caller's request; `worker` may still run
    the job for other callers."""

    job: int
    outcome: Outcome
    attempts: int
    worker: int | None


@dataclass(frozen=True)
class Send:
    """Give `job` to the farm."""

    job: int


@dataclass(frozen=True)
class Recall:
    """Withdraw `job` from the farm."""

    job: int


Action = Fork | Assign | Park | Kill | Grant | Deliver | Send | Recall
