"""The scheduler's records of jobs and workers, and questions about them that change nothing."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum

from fxpool.pool.server.decisions import Action, Outcome
from fxpool.pool.wire.job_spec import JobSpec

__all__ = ["Job", "Slot", "State", "Worker"]

# With fewer slots, a job and its sub-jobs use all of them, and a best-effort job would compete for their cores.
_MANY = 4
# A best-effort job with this many asks does not wait for quiet, which jobs in a row do not leave.
_WANTED = 3


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


class State:
    """All jobs and workers, the queue and the slots. `Scheduler` changes them."""

    def __init__(self, slots: int, *, zygote_losses: int = 3, begins: int = 8) -> None:
        if slots < 1:
            raise ValueError(f"a pool needs at least one slot, not {slots}")
        self.slots = slots
        self._zygote_losses = zygote_losses
        self._begins = begins
        self._losses = 0
        self._ready = False
        self.broken: str | None = None  # the reason why no job can ever run
        self._actions: list[Action] = []  # of the current event
        self._jobs: dict[int, Job] = {}
        self._asks: dict[int, int] = {}  # job by ask
        self._deduplicated: dict[str, int] = {}  # job by key
        self._workers: dict[int, Worker] = {}
        self._queue: dict[int, None] = {}
        self._parked: dict[int, None] = {}  # workers, the latest last
        self._wanting: deque[int] = deque()
        self.used = 0  # slots held; exceeds `slots` only by workers that `relieve` started
        self._admitted: int | None = None
        self._quiet = False
        self._on_hold = False
        self._ages = itertools.count()
        self._worker_numbers = itertools.count(1)
        self.retries = 0

    @property
    def free(self) -> int:
        """Number of free slots."""
        return max(0, self.slots - self.used)

    @property
    def queued(self) -> int:
        """Number of jobs without a worker."""
        return len(self._queue)

    @property
    def order(self) -> list[int]:
        """The jobs without a worker, the next one first."""
        return [job.job for job in sorted((self._jobs[number] for number in self._queue), key=self._rank())]

    @property
    def running(self) -> int:
        """Number of workers that are not parked."""
        return len(self._workers) - len(self._parked)

    @property
    def begun(self) -> int:
        """Number of jobs that have a worker, sub-jobs excluded."""
        return sum(job.worker is not None and job.parent is None for job in self._jobs.values())

    @property
    def stalled(self) -> bool:
        """True if all slots are held by workers with unfinished sub-jobs, and those sub-jobs wait for a slot."""
        waiting = self.used >= self.slots or self.waits_for_exclusion
        if not waiting or self._on_hold or not self._ready or self._next_helper() is None:
            return False
        return all(w.children and w.job is not None for w in self._workers.values() if w.slot is Slot.HELD)

    @property
    def waits_for_exclusion(self) -> bool:
        """True if the next job is exclusive and others still run."""
        may_be = self._ready and self.used and not self._on_hold and not self._wanting and not self._held_exclusively()
        head = self._head() if may_be else None
        return head is not None and head.spec.exclusive

    @property
    def waits_for_quiet(self) -> bool:
        """True if no slot is held, and only best-effort jobs are queued."""
        idle = self._ready and not self.used and not self._on_hold and not self._runs_best_effort()
        return idle and bool(self._queue) and all(self._jobs[j].spec.best_effort for j in self._queue)

    def job_of(self, ask: int) -> int | None:
        """Return the job that an ask waits for: its own number, or that of the job it joined; None after delivery."""
        return self._asks.get(ask)

    def asks_of(self, job: int) -> list[int]:
        """Return the asks that wait for a job, in the order of their arrival."""
        return list(self._jobs[job].asks) if job in self._jobs else []

    def missed(self, job: int) -> int:
        """Return how many workers in a row did not reach the job's function."""
        return self._jobs[job].missed if job in self._jobs else 0

    def awaits_farm(self, job: int) -> bool:
        """Return whether a job has failed here, and waits for the farm's answer."""
        return job in self._jobs and self._jobs[job].failure is not None

    # -- for the scheduler

    def _job(self, worker: int) -> Job | None:
        """Return the job of a worker, or None."""
        known = self._workers.get(worker)
        return self._jobs[known.job] if known is not None and known.job is not None else None

    def _head(self) -> Job | None:
        """Return the next queued job that may start, or None."""
        queue = [self._jobs[number] for number in self._queue]
        if self._admitted is not None and self.begun >= self._admitted:
            queue = [job for job in queue if job.parent is not None]
        if self._runs_best_effort():
            queue = [job for job in queue if not job.spec.best_effort]
        elif not self._quiet and (self.slots < _MANY or 2 * self.free < self.slots):
            queue = [job for job in queue if not job.spec.best_effort or len(job.asks) >= _WANTED]
        return min(queue, key=self._rank(), default=None)

    def _runs_best_effort(self) -> bool:
        return any(job.spec.best_effort and job.worker is not None for job in self._jobs.values())

    def _rank(self) -> Callable[[Job], tuple[bool, int, int, int]]:
        """Return a key that sorts queued jobs in the order in which they start."""
        held: dict[Hashable, int] = {}
        for worker in self._workers.values():
            if worker.slot is Slot.HELD and worker.job is not None:
                for owner in self._owners(self._jobs[worker.job]):
                    held[owner] = held.get(owner, 0) + 1

        def rank(job: Job) -> tuple[bool, int, int, int]:
            load = min((held.get(owner, 0) for owner in self._owners(job)), default=0)
            return job.parent is None, -job.spec.priority, load, job.age

        return rank

    def _owners(self, job: Job) -> set[Hashable]:
        """Return the owners of a job or, for a sub-job, of the job that it belongs to."""
        while job.parent is not None:
            above = self._workers.get(job.parent)
            if above is None or above.job is None:
                return set()
            job = self._jobs[above.job]
        return set(job.asks.values())

    def _next_helper(self) -> int | None:
        """Return the next worker that wants its slot back, or else the next job if it is a sub-job.

        Either may end another worker's wait.
        """
        if self._wanting:
            return self._wanting[0]
        head = self._head()
        return head.job if head is not None and head.parent is not None else None

    def _held_exclusively(self) -> bool:
        return any(
            worker.slot is Slot.HELD and worker.job is not None and self._jobs[worker.job].spec.exclusive
            for worker in self._workers.values()
        )
