"""Decides which job runs next, and what a death means: the server's state machine, without processes or clocks.

Events are methods, decisions are the list of actions they return; the server carries them out in that order. Jobs and
workers are numbers, owners any hashable name the server gives; outcomes are opaque.

A **job** is queued or has one **worker**, and is wanted by one or more **asks**: an ask for a job that is under way
already (`flight`) joins it, and hears of its end with the others. The job goes on as long as one ask wants it.

A worker holds a slot, holds none (it waits for its sub-jobs) or wants one back. It outlives its job from the moment the
outcome is delivered until the process is gone, and its slot is free only then. Sub-jobs belong to the worker that
submitted them: they end with it.

A job of a **kind** may run in a worker that ran others of that kind, which is then **parked**, without a job or slot,
for the next one. As many are kept as there are slots, the latest.

A worker's end is blamed on its job only once it **reached** that: before, it is the host that lacks something. Such a
job is begun again, up to `begins` workers in a row, and then ends with `NoWorker`.

On `hold` nothing is begun and nobody gets a slot back, until `go_on`.

While `admit` says so, no job is begun beside those that run: the host is short of something. A job that is to run
**alone** waits, once it is its turn, until no slot is held, and nothing goes on or is begun until it ended.

A **spare** job has no owner: it goes on when its client leaves. It is begun if most slots are free, or when the server
says that it has been `quiet`; with few slots it would be in the way of its own client's jobs.

Order: workers that want their slot back, then sub-jobs, then jobs. So a blocked worker, which holds memory, is served
before a new one is begun. Among equals: by priority (higher first), then whose owner holds the fewest slots, then age.

Why there is no deadlock, with any number of slots: a worker that waits for sub-jobs gives its slot back. One that waits
unnoticed (in `concurrent.futures.wait`, say) is seen as `stalled`, and `relieve` lets one more run; so does it, once
the server is out of patience, for a job that `waits_to_be_alone`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Hashable

from fxpool.pool.server.decisions import (
    Action,
    Answered,
    Assign,
    Cancelled,
    Deliver,
    Died,
    Fork,
    Grant,
    Kill,
    NoWorker,
    Outcome,
    Park,
    Unavailable,
)
from fxpool.pool.server.scheduler_state import DEFAULT_WISHES, Job, Slot, Wishes, Worker

__all__ = ["Scheduler"]

# With fewer slots a job and its sub-jobs use all of them: a spare job would share their cores.
_MANY = 4


class Scheduler:
    """The state machine. Not thread-safe; every event method returns the actions it decided on."""

    def __init__(self, slots: int, *, zygote_losses: int = 3, begins: int = 8) -> None:
        if slots < 1:
            raise ValueError(f"a pool needs at least one slot, not {slots}")
        self.slots = slots
        self._zygote_losses = zygote_losses
        self._begins = begins
        self._losses = 0
        self._ready = False
        self._broken: str | None = None
        self._jobs: dict[int, Job] = {}
        self._asks: dict[int, int] = {}  # the job an ask belongs to
        self._flights: dict[Hashable, int] = {}
        self._workers: dict[int, Worker] = {}
        self._queue: dict[int, None] = {}
        self._parked: dict[int, None] = {}  # workers, the latest last
        self._wanting: deque[int] = deque()
        self._used = 0
        self._admitted: int | None = None
        self._quiet = False
        self._on_hold = False
        self._ages = itertools.count()
        self._worker_numbers = itertools.count(1)
        self.retries = 0

    # -- for observers

    @property
    def used(self) -> int:
        """Slots held now. Over `slots` only by workers that `relieve` let in."""
        return self._used

    @property
    def free(self) -> int:
        """Number of free slots."""
        return max(0, self.slots - self._used)

    @property
    def queued(self) -> int:
        """Number of jobs without a worker."""
        return len(self._queue)

    @property
    def order(self) -> list[int]:
        """The jobs without a worker, the next one first, as things stand."""
        return [job.job for job in sorted((self._jobs[number] for number in self._queue), key=self._rank())]

    @property
    def running(self) -> int:
        """Number of workers that are not parked."""
        return len(self._workers) - len(self._parked)

    @property
    def begun(self) -> int:
        """Number of jobs that have a worker, without sub-jobs."""
        return sum(job.worker is not None and job.parent is None for job in self._jobs.values())

    @property
    def broken(self) -> str | None:
        """Why no job can ever run; None if jobs can."""
        return self._broken

    @property
    def stalled(self) -> bool:
        """True if all slots are held by workers with unfinished sub-jobs, and those sub-jobs wait for a slot."""
        waiting = self._used >= self.slots or self.waits_to_be_alone
        if not waiting or self._on_hold or not self._ready or self._next_helper() is None:
            return False
        return all(w.children and w.job is not None for w in self._workers.values() if w.slot is Slot.HELD)

    @property
    def waits_to_be_alone(self) -> bool:
        """True if it is the turn of a job that is to run alone, and others run."""
        may_be = self._ready and self._used and not self._on_hold and not self._wanting and not self._held_alone()
        head = self._head() if may_be else None
        return head is not None and head.alone

    @property
    def waits_for_quiet(self) -> bool:
        """True if no slot is held, and only spare jobs are queued."""
        idle = self._ready and not self._used and not self._on_hold
        return idle and bool(self._queue) and all(self._jobs[j].spare for j in self._queue)

    # -- jobs

    def job_of(self, ask: int) -> int | None:
        """Return the job that an ask waits for: its own number, or the one it joined; None once it was delivered."""
        return self._asks.get(ask)

    def asks_of(self, job: int) -> list[int]:
        """Return the asks that wait for a job, in the order they came."""
        return list(self._jobs[job].asks) if job in self._jobs else []

    def submit(
        self,
        job: int,
        wishes: Wishes = DEFAULT_WISHES,
        *,
        owner: Hashable = None,
        parent: int | None = None,
    ) -> list[Action]:
        """Add an ask of `owner`, or of a worker (`parent`)."""
        actions: list[Action] = []
        flight, priority, retries = wishes.flight, wishes.priority, wishes.retries
        if wishes.spare:
            owner = None
        if self._broken is not None:
            return [Deliver(job, Unavailable(self._broken), 0, None)]
        if parent is not None:
            asker = self._workers.get(parent)
            if asker is None or asker.job is None:
                return [Deliver(job, Cancelled("the worker that asked for it is gone"), 0, None)]
            asker.children[job] = None
            owner, flight = None, None  # it ends with the worker, and not before
        elif flight is not None and flight in self._flights:
            known = self._jobs[self._flights[flight]]
            known.asks[job] = owner
            known.priority, known.retries = max(known.priority, priority), max(known.retries, retries)
            self._asks[job] = known.job
            return actions
        elif flight is not None:
            self._flights[flight] = job
        age = next(self._ages)
        self._jobs[job] = Job(
            job, {job: owner}, parent, flight, wishes.kind, retries, priority, age, wishes.alone, wishes.spare
        )
        self._asks[job] = job
        self._queue[job] = None
        self._dispatch(actions)
        return actions

    def cancel(self, job: int, reason: str = "cancelled") -> list[Action]:
        """Withdraw an ask. If no other wants its job, the worker is killed, and its sub-jobs with it."""
        actions: list[Action] = []
        self._withdraw(job, reason, actions)
        self._dispatch(actions)
        return actions

    def owner_left(self, owner: Hashable) -> list[Action]:
        """Cancel all asks of `owner`."""
        actions: list[Action] = []
        top = [job for job in self._jobs.values() if job.parent is None]
        for ask in [ask for job in top for ask, whose in job.asks.items() if whose == owner]:
            self._withdraw(ask, "its asker is gone", actions)
        self._dispatch(actions)
        return actions

    def admit(self, jobs: int | None) -> list[Action]:
        """From now on, begin no job while so many run (None: no limit but the slots). Sub-jobs are always admitted."""
        actions: list[Action] = []
        self._admitted = jobs
        self._dispatch(actions)
        return actions

    def hold(self) -> None:
        """Begin nothing from now on, and give nobody a slot back."""
        self._on_hold = True

    def go_on(self) -> list[Action]:
        """End `hold`."""
        actions: list[Action] = []
        self._on_hold = False
        self._dispatch(actions)
        return actions

    def quiet(self) -> list[Action]:
        """Begin a spare job, if only spare ones wait: nothing was submitted for a while."""
        actions: list[Action] = []
        if self.waits_for_quiet:
            self._quiet = True
            self._run_next(actions)
            self._quiet = False
        return actions

    # -- workers

    def reached(self, worker: int) -> list[Action]:
        """Mark that the worker is at its job's function; from now on its death counts as an attempt."""
        known = self._workers.get(worker)
        if known is not None and known.job is not None:
            known.reached = True
            self._jobs[known.job].missed = 0
        return []

    def failed(self, worker: int) -> list[Action]:
        """Don't blame the worker's end on its job from now on."""
        if worker in self._workers:
            self._workers[worker].reached = False
        return []

    def missed(self, job: int) -> int:
        """Return how many workers in a row did not reach a job."""
        return self._jobs[job].missed if job in self._jobs else 0

    def refuse(self, worker: int, reason: str) -> list[Action]:
        """End the job of this worker as Unavailable: no worker can ever be given it."""
        actions: list[Action] = []
        known = self._workers.get(worker)
        if known is not None and known.job is not None:
            self._abort(known.job, Unavailable(reason), actions)
            self._dispatch(actions)
        return actions

    def answered(self, worker: int, answer: object, *, stays: bool = False) -> list[Action]:
        """Deliver the worker's answer; its process ends soon, unless it `stays` for another job of its kind."""
        actions: list[Action] = []
        known = self._workers.get(worker)
        if known is None or known.job is None:
            return actions
        self._losses = 0
        self._finish(self._jobs[known.job], Answered(answer), actions)
        if stays and known.kind is not None and known.reached and not known.killed:
            self._park(known, actions)
        elif stays:
            self._kill(worker, actions)  # it waits for a job that won't come
        self._dispatch(actions)
        return actions

    def dismiss(self, worker: int) -> list[Action]:
        """Stop keeping a parked worker."""
        actions: list[Action] = []
        if self._parked.pop(worker, self) is None:
            self._kill(worker, actions)
        return actions

    def exited(self, worker: int, how: object) -> list[Action]:
        """Forget a worker whose process is gone. If it had reached its job and not answered, that costs an attempt."""
        actions: list[Action] = []
        self._remove(worker, how, actions)
        self._dispatch(actions)
        return actions

    def given_up(self, worker: int, how: object) -> list[Action]:
        """End the job of a worker that was killed and does not end; the slot is free only when it does."""
        actions: list[Action] = []
        known = self._workers.get(worker)
        if known is not None and known.job is not None:
            self._abort(known.job, Died(how), actions)
            self._dispatch(actions)
        return actions

    def lost(self, worker: int) -> list[Action]:
        """Kill a worker that can't be heard any more."""
        actions: list[Action] = []
        self._kill(worker, actions)
        return actions

    def waiting(self, worker: int) -> list[Action]:
        """Free the worker's slot while it is blocked until sub-jobs end."""
        actions: list[Action] = []
        known = self._workers.get(worker)
        if known is not None and known.job is not None:
            self._release(known)
            self._dispatch(actions)
        return actions

    def resume(self, worker: int) -> list[Action]:
        """Queue the worker for a slot; it goes on when it gets its Grant."""
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
        """Let one more run than there are slots, or beside a job that wants to be alone, if everything waits for that
        (see `stalled`, `waits_to_be_alone`)."""
        actions: list[Action] = []
        if self.stalled or self.waits_to_be_alone:
            self._run_next(actions, beside=True)
        return actions

    # -- the zygote

    def zygote_ready(self) -> list[Action]:
        """Begin jobs: the zygote can fork."""
        actions: list[Action] = []
        self._ready = True
        self._dispatch(actions)
        return actions

    def zygote_lost(self, how: object, reason: str = "the zygote died") -> list[Action]:
        """Forget the zygote and its workers. The server starts another zygote unless `broken` is set afterwards.

        No job is blamed for it, but a job that loses as many zygotes as break the pool gets no other worker.
        """
        actions: list[Action] = []
        self._ready = False
        self._losses += 1
        for known in list(self._workers.values()):
            job = self._jobs.get(known.job) if known.job is not None else None
            if job is not None and known.reached:
                job.losses += 1
                if job.losses >= self._zygote_losses:
                    self._finish(job, Unavailable(f"{reason}, for the {job.losses}. time while it ran"), actions)
            known.reached = False
            self._remove(known.worker, how, actions, missed=False)
        if self._losses >= self._zygote_losses:
            actions += self.zygote_broken(f"{reason} {self._losses} times in a row")
        return actions

    def zygote_broken(self, reason: str) -> list[Action]:
        """End every job, and every later one: no zygote will ever be ready."""
        actions: list[Action] = []
        self._ready = False
        self._broken = reason
        for job in list(self._jobs):
            self._abort(job, Unavailable(reason), actions)
        return actions

    # -- internals

    def _head(self) -> Job | None:
        """Return the next queued job that may be begun, or None."""
        queue = [self._jobs[number] for number in self._queue]
        if self._admitted is not None and self.begun >= self._admitted:
            queue = [job for job in queue if job.parent is not None]
        if not self._quiet and (self.slots < _MANY or 2 * self.free < self.slots):
            queue = [job for job in queue if not job.spare]
        return min(queue, key=self._rank(), default=None)

    def _rank(self) -> Callable[[Job], tuple[bool, int, int, int]]:
        """Return the order in which queued jobs are begun, as things stand: a key to sort them by."""
        held: dict[Hashable, int] = {}
        for worker in self._workers.values():
            if worker.slot is Slot.HELD and worker.job is not None:
                for owner in self._owners(self._jobs[worker.job]):
                    held[owner] = held.get(owner, 0) + 1

        def rank(job: Job) -> tuple[bool, int, int, int]:
            load = min((held.get(owner, 0) for owner in self._owners(job)), default=0)
            return job.parent is None, -job.priority, load, job.age

        return rank

    def _owners(self, job: Job) -> set[Hashable]:
        """Return the owners of a job, or of the job that it is a part of."""
        while job.parent is not None:
            above = self._workers.get(job.parent)
            if above is None or above.job is None:
                return set()
            job = self._jobs[above.job]
        return set(job.asks.values())

    def _next_helper(self) -> int | None:
        """Return a worker that wants its slot back, or a sub-job, if it is next: it may end another worker's wait."""
        if self._wanting:
            return self._wanting[0]
        head = self._head()
        return head.job if head is not None and head.parent is not None else None

    def _dispatch(self, actions: list[Action]) -> None:
        while self._used < self.slots and self._run_next(actions):
            pass

    def _held_alone(self) -> bool:
        return any(
            worker.slot is Slot.HELD and worker.job is not None and self._jobs[worker.job].alone
            for worker in self._workers.values()
        )

    def _run_next(self, actions: list[Action], beside: bool = False) -> bool:
        if self._on_hold or (not beside and self._held_alone()):
            return False
        if self._wanting:
            worker = self._workers[self._wanting.popleft()]
            worker.slot = Slot.HELD
            self._used += 1
            actions.append(Grant(worker.worker))
            return True
        job = self._head() if self._ready else None
        if job is None or (job.alone and self._used and not beside):
            return False
        del self._queue[job.job]
        job.attempt += 1
        self._used += 1
        kept = next((w for w in reversed(self._parked) if self._workers[w].kind == job.kind), None)
        if kept is not None:
            del self._parked[kept]
            job.worker, known = kept, self._workers[kept]
            known.job, known.slot, known.reached = job.job, Slot.HELD, False
            actions.append(Assign(kept, job.job, job.attempt, job.last))
            return True
        job.worker = next(self._worker_numbers)
        self._workers[job.worker] = Worker(job.worker, job.job, job.kind)
        actions.append(Fork(job.worker, job.job, job.attempt, job.last))
        return True

    def _park(self, worker: Worker, actions: list[Action]) -> None:
        self._release(worker)
        self._parked[worker.worker] = None
        actions.append(Park(worker.worker))
        if len(self._parked) > self.slots:
            actions += self.dismiss(next(iter(self._parked)))

    def _release(self, worker: Worker) -> None:
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

    def _finish(self, job: Job, outcome: Outcome, actions: list[Action]) -> None:
        """Forget the job, deliver its outcome, end its sub-jobs. The worker, if any, stays without a job."""
        del self._jobs[job.job]
        if job.flight is not None:
            del self._flights[job.flight]
        if job.parent in self._workers:
            self._workers[job.parent].children.pop(job.job, None)
        for ask in job.asks:
            del self._asks[ask]
            actions.append(Deliver(ask, outcome, job.attempt, job.worker))
        if job.worker is None:
            del self._queue[job.job]
        else:
            self._orphan(self._workers[job.worker], actions)

    def _orphan(self, worker: Worker, actions: list[Action]) -> None:
        worker.job = None
        if worker.slot is Slot.WANTED:
            self._release(worker)
        for child in list(worker.children):
            self._abort(child, Cancelled("the job that asked for it ended"), actions)

    def _withdraw(self, ask: int, reason: str, actions: list[Action]) -> None:
        job = self._jobs.get(self._asks.get(ask, -1))
        if job is None:
            return
        if len(job.asks) == 1:
            self._abort(job.job, Cancelled(reason), actions)
            return
        del job.asks[ask], self._asks[ask]
        actions.append(Deliver(ask, Cancelled(reason), job.attempt, None))

    def _abort(self, job: int, outcome: Outcome, actions: list[Action]) -> None:
        known = self._jobs.get(job)
        if known is not None:
            self._finish(known, outcome, actions)
            if known.worker is not None:
                self._kill(known.worker, actions)

    def _remove(self, worker: int, how: object, actions: list[Action], *, missed: bool = True) -> None:
        known = self._workers.get(worker)
        if known is None:
            return
        self._release(known)
        self._parked.pop(worker, None)
        job = self._jobs.get(known.job) if known.job is not None else None
        if job is None:
            del self._workers[worker]
            return
        outcome: Outcome | None = None
        if known.reached:
            outcome = Died(how) if job.attempt > job.retries else None
        else:
            job.attempt -= 1  # it never ran
            job.missed += missed
            outcome = NoWorker(how, job.missed) if job.missed >= self._begins else None
        if outcome is not None:
            self._finish(job, outcome, actions)
            del self._workers[worker]
            return
        self._orphan(known, actions)
        del self._workers[worker]
        self.retries += 1
        job.worker, job.last = None, how
        self._queue[job.job] = None
