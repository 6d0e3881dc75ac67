"""The scheduler's records of jobs and workers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["DEFAULT_WISHES", "Job", "Slot", "Wishes", "Worker"]


class Slot(Enum):
    """A worker's hold on a slot."""

    HELD = "held"
    NONE = "none"
    WANTED = "wanted"


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """How a job is to be run. Equal `flight` says that results would be equal, equal `kind` that one worker may run
    both, `alone` that nothing else is to run meanwhile, `spare` that the job may wait for time to spare.

    `retries` is the number of workers' ends that are forgiven; jobs of higher `priority` begin first.
    """

    flight: Hashable | None = None
    kind: Hashable | None = None
    retries: int = 1
    priority: int = 0
    alone: bool = False
    spare: bool = False


DEFAULT_WISHES = Wishes()


@dataclass
class Job:
    """`job` is the number of its first ask, which may have left; `asks` maps the remaining ones to their owners."""

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
    losses: int = 0  # zygotes that died while it ran
    missed: int = 0  # workers that did not reach it
    worker: int | None = None
    last: object = None


@dataclass
class Worker:
    """A worker; `job` is None once it is parked or its job has ended."""

    worker: int
    job: int | None
    kind: Hashable | None
    slot: Slot = Slot.HELD
    reached: bool = False
    killed: bool = False
    children: dict[int, None] = field(default_factory=dict)
