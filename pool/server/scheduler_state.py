"""The scheduler's records of jobs and workers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum

from fxpool.pool.server.decisions import Outcome

__all__ = ["DEFAULT_WISHES", "Job", "Slot", "Wishes", "Worker"]


class Slot(Enum):
    """Whether a worker holds a slot, holds none, or wants one."""

    HELD = "held"
    NONE = "none"
    WANTED = "wanted"


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """Options of a job.

    Jobs with the same `flight` have the same result, and jobs with the same `kind` may run in one worker. `retries` is
    the number of worker deaths after which the job is tried again. Jobs of higher `priority` start first. `alone` makes
    a job exclusive, `spare` best effort. `away`: the server's farm may run it.
    """

    flight: Hashable | None = None
    kind: Hashable | None = None
    retries: int = 1
    priority: int = 0
    alone: bool = False
    spare: bool = False
    away: bool = False


DEFAULT_WISHES = Wishes()


@dataclass
class Job:
    """A job. `job` is the number of its first ask, which may have left; `asks` maps its asks to their owners."""

    job: int
    asks: dict[int, Hashable]
    parent: int | None
    flight: Hashable | None
    kind: Hashable | None
    retries: int
    priority: int
    age: int
    alone: bool
    spare: bool = False
    attempt: int = 0
    losses: int = 0  # number of zygotes that died while it ran
    missed: int = 0  # number of workers in a row that did not reach its function
    worker: int | None = None
    last: object = None
    away: bool = False  # the farm has it
    failure: Outcome | None = None  # the outcome at home of a job that the farm has, too


@dataclass
class Worker:
    """A worker. `job` is None after its job has ended, and while it is parked."""

    worker: int
    job: int | None
    kind: Hashable | None
    slot: Slot = Slot.HELD
    reached: bool = False
    killed: bool = False
    children: dict[int, None] = field(default_factory=dict)
