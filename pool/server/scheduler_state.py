"""The scheduler's records of jobs and workers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum

from fxpool.pool.server.decisions import Outcome
from fxpool.pool.wire.messages import JobSpec

__all__ = ["Job", "Slot", "Worker"]


class Slot(Enum):
    """Whether a worker holds a slot, holds none, or wants one."""

    HELD = "held"
    NONE = "none"
    WANTED = "wanted"


@dataclass
class Job:
    """A job. `job` is the number of its first ask, which may have left; `asks` maps its asks to their owners.

    `spec` is that of the first ask, with the highest priority and number of retries of all asks. Jobs of the same
    `kind` may run in one worker.
    """

    job: int
    asks: dict[int, Hashable]
    parent: int | None
    spec: JobSpec
    kind: Hashable | None
    age: int
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
