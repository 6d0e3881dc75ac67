"""Who runs next, and what a death means: the server's decisions, without processes, sockets or clocks.

Events are methods, decisions are the list of actions they return; the server carries them out in that order. Jobs,
workers and owners are numbers or any hashable name the caller gives; outcomes are opaque.

A **job** is queued or has one **worker**. A worker holds a slot, holds none (it is blocked in waiting for its sub-jobs)
or wants one back. A worker outlives its job from the moment the asker has the outcome until the process is gone, and
its slot is free only then. Sub-jobs belong to the worker that asked for them: they end with it.

Order: workers that want their slot back, then sub-jobs, then jobs; by priority (higher first) and age. So a blocked
worker, which holds memory, is served before a new one is begun.

Why there is no deadlock, with any number of slots: a worker that waits for sub-jobs gives its slot back. One that waits
without our noticing (in `concurrent.futures.wait`, say) is seen as `stalled`, and `relieve` lets one more run.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum

__all__ = [
    "Action",
    "Answered",
    "Cancelled",
    "Deliver",
    "Died",
    "Fork",
    "Grant",
    "Kill",
    "Outcome",
    "Scheduler",
    "TimedOut",
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
class TimedOut:
    pass


@dataclass(frozen=True)
class Cancelled:
    reason: str


@dataclass(frozen=True)
class Unavailable:
    """No worker can be forked, now or later."""

    reason: str


Outcome = Answered | Died | TimedOut | Cancelled | Unavailable


# ---------------------------------------------------------------- actions


@dataclass(frozen=True)
class Fork:
    """Start worker `worker` for `job`. `last` says how the worker of the attempt before ended."""

    worker: int
    job: int
    attempt: int
    last: object = None


@dataclass(frozen=True)
class Kill:
    worker: int


@dataclass(frozen=True)
class Grant:
    """`worker` holds a slot again."""

    worker: int


@dataclass(frozen=True)
class Deliver:
    """Tell the asker of `job`; the scheduler has forgotten it."""

    job: int
    outcome: Outcome
    attempts: int
    worker: int | None


Action = Fork | Kill | Grant | Deliver


# ---------------------------------------------------------------- state


class Slot(Enum):
    HELD = "held"
    NONE = "none"
    WANTED = "wanted"


@dataclass
class _Job:
    job: int
    owner: Hashable
    parent: int | None
    retries: int
    rank: tuple[int, int, int]
    attempt: int = 0
    worker: int | None = None
    last: object = None


@dataclass
class _Worker:
    worker: int
    job: int | None
    slot: Slot = Slot.HELD
    forked: bool = False
    killed: bool = False
    children: dict[int, None] = field(default_factory=dict)


class Scheduler:
    """The state machine. Not thread-safe; every method but the properties returns the actions it decided on."""

    def __init__(self, slots: int, *, zygote_losses: int = 3) -> None:
        if slots < 1:
            raise ValueError(f"a pool needs at least one slot, not {slots}")
        self.slots = slots
        self._zygote_losses = zygote_losses
        self._losses = 0
        self._ready = False
        self._broken: str | None = None
        self._jobs: dict[int, _Job] = {}
        self._workers: dict[int, _Worker] = {}
        self._queue: list[tuple[tuple[int, int, int], int]] = []
        self._wanting: deque[int] = deque()
        self._used = 0
        self._queued = 0
        self._ages = itertools.count()
        self._worker_numbers = itertools.count(1)
        self.retries = 0

    # -- what a watcher may ask

    @property
    def used(self) -> int:
        """Slots held now. Over `slots` only by what `relieve` let in."""
        return self._used

    @property
    def free(self) -> int:
        return max(0, self.slots - self._used)

    @property
    def queued(self) -> int:
        return self._queued

    @property
    def running(self) -> int:
        return len(self._workers)

    @property
    def broken(self) -> str | None:
        return self._broken

    @property
    def stalled(self) -> bool:
        """All slots are held by workers with unfinished sub-jobs, and those sub-jobs wait for a slot."""
        if self._used < self.slots or not self._ready or self._next_helper() is None:
            return False
        return all(w.children and w.job is not None for w in self._workers.values() if w.slot is Slot.HELD)

    # -- jobs

    def submit(
        self, job: int, *, owner: Hashable, parent: int | None = None, retries: int = 1, priority: int = 0
    ) -> list[Action]:
        """A new job; `parent` is the worker that asked for it, if one did."""
        actions: list[Action] = []
        if self._broken is not None:
            return [Deliver(job, Unavailable(self._broken), 0, None)]
        if parent is not None:
            asker = self._workers.get(parent)
            if asker is None or asker.job is None:
                return [Deliver(job, Cancelled("the worker that asked for it is gone"), 0, None)]
            asker.children[job] = None
        rank = (0 if parent is not None else 1, -priority, next(self._ages))
        self._jobs[job] = _Job(job, owner, parent, retries, rank)
        self._enqueue(self._jobs[job])
        self._dispatch(actions)
        return actions

    def cancel(self, job: int, reason: str = "cancelled") -> list[Action]:
        """The asker withdrew it. Its worker is killed, its sub-jobs too."""
        actions: list[Action] = []
        self._abort(job, Cancelled(reason), actions)
        self._dispatch(actions)
        return actions

    def owner_left(self, owner: Hashable) -> list[Action]:
        """Cancels all that `owner` asked for."""
        actions: list[Action] = []
        for job in [j.job for j in self._jobs.values() if j.owner == owner]:
            self._abort(job, Cancelled("its asker is gone"), actions)
        self._dispatch(actions)
        return actions

    def timed_out(self, worker: int) -> list[Action]:
        """The job of `worker` ran out of its wall time."""
        actions: list[Action] = []
        known = self._workers.get(worker)
        if known is not None and known.job is not None:
            self._abort(known.job, TimedOut(), actions)
            self._dispatch(actions)
        return actions

    # -- workers

    def forked(self, worker: int) -> list[Action]:
        """The process exists; from now on its death counts as an attempt."""
        if worker in self._workers:
            self._workers[worker].forked = True
        return []

    def answered(self, worker: int, answer: object) -> list[Action]:
        """The worker answered; the process will be gone soon."""
        actions: list[Action] = []
        known = self._workers.get(worker)
        if known is None or known.job is None:
            return actions
        self._losses = 0
        self._finish(self._jobs[known.job], Answered(answer), actions)
        self._dispatch(actions)
        return actions

    def exited(self, worker: int, how: object) -> list[Action]:
        """The process is gone. Without an answer that costs its job an attempt, if the process ever existed."""
        actions: list[Action] = []
        self._remove(worker, how, actions)
        self._dispatch(actions)
        return actions

    def lost(self, worker: int) -> list[Action]:
        """Nothing more can be heard of the worker: make sure that it ends."""
        actions: list[Action] = []
        self._kill(worker, actions)
        return actions

    def waiting(self, worker: int) -> list[Action]:
        """The worker is blocked until sub-jobs end; its slot is free meanwhile."""
        actions: list[Action] = []
        known = self._workers.get(worker)
        if known is not None and known.job is not None:
            self._release(known)
            self._dispatch(actions)
        return actions

    def resume(self, worker: int) -> list[Action]:
        """The worker wants to go on; it does when it gets its Grant."""
        actions: list[Action] = []
        known = self._workers.get(worker)
        if known is None or known.job is None:
            return actions
        if known.slot is Slot.HELD:
            return [Grant(worker)]
        if known.slot is Slot.NONE:
            known.slot = Slot.WANTED
            self._wanting.append(worker)
            self._dispatch(actions)
        return actions

    def relieve(self) -> list[Action]:
        """Let one more run than there are slots, if that is what everything waits for (see `stalled`)."""
        actions: list[Action] = []
        if self.stalled:
            self._run_next(actions)
        return actions

    # -- the zygote

    def zygote_ready(self) -> list[Action]:
        actions: list[Action] = []
        self._ready = True
        self._dispatch(actions)
        return actions

    def zygote_lost(self, how: object, reason: str = "the zygote died") -> list[Action]:
        """It died, and its workers with it. The caller starts another unless `broken` is set afterwards."""
        actions: list[Action] = []
        self._ready = False
        self._losses += 1
        for worker in list(self._workers):
            self._remove(worker, how, actions)
        if self._losses >= self._zygote_losses:
            actions += self.zygote_broken(f"{reason} {self._losses} times in a row")
        return actions

    def zygote_broken(self, reason: str) -> list[Action]:
        """No zygote will ever be ready: every job ends, and every later one."""
        actions: list[Action] = []
        self._ready = False
        self._broken = reason
        for job in list(self._jobs):
            self._abort(job, Unavailable(reason), actions)
        return actions

    # -- inside

    def _enqueue(self, job: _Job) -> None:
        self._queued += 1
        heapq.heappush(self._queue, (job.rank, job.job))

    def _head(self) -> _Job | None:
        """The next queued job, or None. Entries of jobs that were withdrawn lie in the heap until they come up."""
        while self._queue:
            job = self._jobs.get(self._queue[0][1])
            if job is not None and job.worker is None:
                return job
            heapq.heappop(self._queue)
        return None

    def _next_helper(self) -> int | None:
        """What would run next if it can end another's waiting: a worker that wants to go on, or a sub-job."""
        if self._wanting:
            return self._wanting[0]
        head = self._head()
        return head.job if head is not None and head.parent is not None else None

    def _dispatch(self, actions: list[Action]) -> None:
        while self._used < self.slots and self._run_next(actions):
            pass

    def _run_next(self, actions: list[Action]) -> bool:
        if self._wanting:
            worker = self._workers[self._wanting.popleft()]
            worker.slot = Slot.HELD
            self._used += 1
            actions.append(Grant(worker.worker))
            return True
        job = self._head() if self._ready else None
        if job is None:
            return False
        heapq.heappop(self._queue)
        self._queued -= 1
        job.attempt += 1
        job.worker = next(self._worker_numbers)
        self._workers[job.worker] = _Worker(job.worker, job.job)
        self._used += 1
        actions.append(Fork(job.worker, job.job, job.attempt, job.last))
        return True

    def _release(self, worker: _Worker) -> None:
        if worker.slot is Slot.HELD:
            self._used -= 1
        elif worker.slot is Slot.WANTED:
            self._wanting.remove(worker.worker)
        worker.slot = Slot.NONE

    def _kill(self, worker: int, actions: list[Action]) -> None:
        known = self._workers.get(worker)
        if known is not None and not known.killed:
            known.killed = True
            actions.append(Kill(worker))

    def _finish(self, job: _Job, outcome: Outcome, actions: list[Action]) -> None:
        """Forget the job, tell its asker, end what it had asked for. The worker, if any, goes on without a job."""
        del self._jobs[job.job]
        if job.parent in self._workers:
            self._workers[job.parent].children.pop(job.job, None)  # type: ignore[index]
        actions.append(Deliver(job.job, outcome, job.attempt, job.worker))
        if job.worker is None:
            self._queued -= 1
        else:
            self._orphan(self._workers[job.worker], actions)

    def _orphan(self, worker: _Worker, actions: list[Action]) -> None:
        worker.job = None
        if worker.slot is Slot.WANTED:
            self._release(worker)
        for child in list(worker.children):
            self._abort(child, Cancelled("the job that asked for it ended"), actions)

    def _abort(self, job: int, outcome: Outcome, actions: list[Action]) -> None:
        known = self._jobs.get(job)
        if known is not None:
            self._finish(known, outcome, actions)
            if known.worker is not None:
                self._kill(known.worker, actions)

    def _remove(self, worker: int, how: object, actions: list[Action]) -> None:
        known = self._workers.get(worker)
        if known is None:
            return
        self._release(known)
        job = self._jobs.get(known.job) if known.job is not None else None
        if job is None:
            del self._workers[worker]
            return
        if not known.forked:
            job.attempt -= 1  # it never ran
        if job.attempt > job.retries:
            self._finish(job, Died(how), actions)
            del self._workers[worker]
            return
        self._orphan(known, actions)
        del self._workers[worker]
        self.retries += 1
        job.worker, job.last = None, how
        self._enqueue(job)
