"""Decides which job runs next, and what a worker's death means: a state machine without processes or clocks.

Events are methods. Each returns a list of actions, which the server carries out in order. Jobs and workers are numbers,
owners are any hashable names chosen by the server, and outcomes are passed through unread.

A **job** is queued or has one **worker**. It serves one or more **asks**, the requests of its callers: an ask for a
job that already exists (the same `dedup_key`) joins it. The job goes on as long as at least one ask is left, and all of
its asks receive the outcome.

A worker holds a slot, has released its slot (it waits for sub-jobs), or wants a slot back. When its job's outcome has
been delivered, the worker keeps its slot until its process has ended. Sub-jobs belong to the worker that submitted
them, and end with it.

A job of a **kind** may run in a worker that ran other jobs of that kind. Such a worker is **parked** after each job,
without a job or a slot. At most as many workers are parked as there are slots; the oldest are dismissed.

A job is blamed for its worker's death only if the worker **reached** the job's function. Before that, the host is out
of a resource: the job is started again, in up to `begins` workers in a row, and then ends with `NoWorker`.

Between `hold` and `go_on` no job starts and no slot is granted.

`admit` limits the number of running jobs while the host is short of memory. When an **exclusive** job is
next, it waits until no slot is held, and until it ends no other job starts and no slot is granted.

A **best-effort** job has no owner, so it continues when its client leaves. It starts while most slots are
free or, with few slots, when the server reports `quiet`: otherwise it would compete with its client's next jobs. Once
several asks wait for it, those jobs need it, and any free slot will do. One runs at a time, because it may release its
slot and run for long. It is given up if its worker cannot start. If too many are queued, the oldest is cancelled.

A job that may run **away** is given to the farm of its server (`Send`) instead of being queued, and is called back
(`Recall`) when it ends. The server reports the farm's answer (`came`), or queues the job (`home`) when the farm does
not want it or is late. In the latter case both go on, and the first answer counts. A late job whose workers here have
all died waits for the farm, and fails if the farm loses it.

Order: workers that want their slot back, then sub-jobs, then jobs. So a blocked worker, which holds memory, is served
before a new worker is started. Among equals, a higher priority comes first, then the owner with the fewest slots, then
the older job.

There is no deadlock with any number of slots, because a worker that waits for sub-jobs releases its slot. If it waits
in a way that the worker does not notice (in `concurrent.futures.wait`, say), the pool is `stalled`, and `relieve` lets
one more job run. After a timeout, `relieve` also starts an exclusive job beside others (`waits_for_exclusion`).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Hashable

import msgspec

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
    Recall,
    Send,
    Unavailable,
)
from fxpool.pool.server.scheduler_state import Job, Slot, Worker
from fxpool.pool.wire.messages import JobSpec

__all__ = ["Scheduler"]

# With fewer slots, a job and its sub-jobs use all of them, and a best-effort job would compete for their cores.
_MANY = 4
# A best-effort job with this many asks does not wait for quiet, which jobs in a row do not leave.
_WANTED = 3
# Best-effort jobs that may be queued; each holds its payload, and outlasts its client.
_MOST_BEST_EFFORT = 64


class Scheduler:
    """The state machine. Not thread-safe. Every event method returns the actions to carry out."""

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
        self._asks: dict[int, int] = {}  # job by ask
        self._deduplicated: dict[str, int] = {}  # job by key
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
        """Number of slots held. Exceeds `slots` only by workers that `relieve` started."""
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
    def broken(self) -> str | None:
        """The reason why no job can ever run; None if jobs can run."""
        return self._broken

    @property
    def stalled(self) -> bool:
        """True if all slots are held by workers with unfinished sub-jobs, and those sub-jobs wait for a slot."""
        waiting = self._used >= self.slots or self.waits_for_exclusion
        if not waiting or self._on_hold or not self._ready or self._next_helper() is None:
            return False
        return all(w.children and w.job is not None for w in self._workers.values() if w.slot is Slot.HELD)

    @property
    def waits_for_exclusion(self) -> bool:
        """True if the next job is exclusive and others still run."""
        may_be = self._ready and self._used and not self._on_hold and not self._wanting and not self._held_exclusively()
        head = self._head() if may_be else None
        return head is not None and head.spec.exclusive

    @property
    def waits_for_quiet(self) -> bool:
        """True if no slot is held, and only best-effort jobs are queued."""
        idle = self._ready and not self._used and not self._on_hold and not self._runs_best_effort()
        return idle and bool(self._queue) and all(self._jobs[j].spec.best_effort for j in self._queue)

    # -- jobs

    def job_of(self, ask: int) -> int | None:
        """Return the job that an ask waits for: its own number, or that of the job it joined; None after delivery."""
        return self._asks.get(ask)

    def asks_of(self, job: int) -> list[int]:
        """Return the asks that wait for a job, in the order of their arrival."""
        return list(self._jobs[job].asks) if job in self._jobs else []

    def submit(
        self,
        job: int,
        spec: JobSpec,
        *,
        kind: Hashable | None = None,
        owner: Hashable = None,
        parent: int | None = None,
    ) -> list[Action]:
        """Add an ask of `owner`, or of a worker (`parent`)."""
        actions: list[Action] = []
        key = spec.dedup_key if parent is None else ""  # a sub-job ends exactly when the worker does
        if spec.best_effort:
            owner = None
        if self._broken is not None:
            return [Deliver(job, Unavailable(self._broken), 0, None)]
        if parent is not None:
            asker = self._workers.get(parent)
            if asker is None or asker.job is None:
                return [Deliver(job, Cancelled("the worker that submitted it ended"), 0, None)]
            asker.children[job] = None
            owner = None
        elif key in self._deduplicated:
            joined = self._jobs[self._deduplicated[key]]
            joined.asks[job] = owner
            priority, retries = max(joined.spec.priority, spec.priority), max(joined.spec.retries, spec.retries)
            joined.spec = msgspec.structs.replace(joined.spec, priority=priority, retries=retries)
            self._asks[job] = joined.job
            if joined.spec.best_effort:
                self._dispatch(actions)
            return actions
        if key:
            self._deduplicated[key] = job
        self._jobs[job] = Job(job, {job: owner}, parent, spec, kind, next(self._ages))
        self._asks[job] = job
        if spec.away is not None and parent is None and not spec.best_effort:
            self._jobs[job].away = True
            return [Send(job)]
        self._queue[job] = None
        self._dispatch(actions)
        best_effort = [queued for queued in self._queue if self._jobs[queued].spec.best_effort]
        if len(best_effort) > _MOST_BEST_EFFORT:
            reason = f"more than {_MOST_BEST_EFFORT} best-effort jobs are queued"
            self._abort(best_effort[0], Cancelled(reason), actions)
        return actions

    def cancel(self, job: int, reason: str = "cancelled") -> list[Action]:
        """Withdraw an ask. If it was the job's only ask, the worker is killed, and its sub-jobs with it."""
        actions: list[Action] = []
        self._withdraw(job, reason, actions)
        self._dispatch(actions)
        return actions

    def owner_left(self, owner: Hashable) -> list[Action]:
        """Cancel all asks of `owner`."""
        actions: list[Action] = []
        top = [job for job in self._jobs.values() if job.parent is None]
        for ask in [ask for job in top for ask, whose in job.asks.items() if whose == owner]:
            self._withdraw(ask, "its caller is gone", actions)
        self._dispatch(actions)
        return actions

    def admit(self, jobs: int | None) -> list[Action]:
        """Start no job while this many or more run (None: only the slots limit them). Sub-jobs are always admitted."""
        actions: list[Action] = []
        self._admitted = jobs
        self._dispatch(actions)
        return actions

    def hold(self) -> None:
        """Stop starting jobs and granting slots, until `go_on`."""
        self._on_hold = True

    def go_on(self) -> list[Action]:
        """End `hold`."""
        actions: list[Action] = []
        self._on_hold = False
        self._dispatch(actions)
        return actions

    def quiet(self) -> list[Action]:
        """Start a best-effort job if only such jobs are queued. Called when no job has run for a while."""
        actions: list[Action] = []
        if self.waits_for_quiet:
            self._quiet = True
            self._run_next(actions)
            self._quiet = False
        return actions

    # -- jobs on a farm

    def came(self, job: int, answer: object) -> list[Action]:
        """Deliver the farm's answer. A worker that runs the job, too, is killed."""
        actions: list[Action] = []
        known = self._jobs.get(job)
        if known is not None and known.away:
            known.away = False
            self._abort(job, Answered(answer), actions)
            self._dispatch(actions)
        return actions

    def home(self, job: int, *, still: bool = False) -> list[Action]:
        """Queue a job that the farm does not run, unless it has failed here; with `still`, the farm may answer yet."""
        actions: list[Action] = []
        known = self._jobs.get(job)
        if known is not None and known.away:
            known.away = still
            if known.failure is not None:
                self._finish(known, known.failure, actions)
            elif known.worker is None:
                self._queue[job] = None
            self._dispatch(actions)
        return actions

    # -- workers

    def reached(self, worker: int) -> list[Action]:
        """Mark that the worker reached its job's function. From now on its death counts as an attempt."""
        known = self._workers.get(worker)
        if known is not None and known.job is not None:
            known.reached = True
            self._jobs[known.job].missed = 0
        return []

    def failed(self, worker: int) -> list[Action]:
        """Stop blaming the worker's death on its job."""
        if worker in self._workers:
            self._workers[worker].reached = False
        return []

    def missed(self, job: int) -> int:
        """Return how many workers in a row did not reach the job's function."""
        return self._jobs[job].missed if job in self._jobs else 0

    def refuse(self, worker: int, reason: str) -> list[Action]:
        """End the job of this worker as Unavailable, because it cannot be given to any worker."""
        actions: list[Action] = []
        known = self._workers.get(worker)
        if known is not None and known.job is not None:
            self._abort(known.job, Unavailable(reason), actions)
            self._dispatch(actions)
        return actions

    def answered(self, worker: int, answer: object, *, stays: bool = False) -> list[Action]:
        """Deliver the worker's answer. Its process ends soon, unless it `stays` for another job of its kind."""
        actions: list[Action] = []
        known = self._workers.get(worker)
        if known is None or known.job is None:
            return actions
        self._losses = 0
        self._finish(self._jobs[known.job], Answered(answer), actions)
        if stays and known.kind is not None and known.reached and not known.killed:
            self._park(known, actions)
        elif stays:
            self._kill(worker, actions)  # it waits for a job that will not come
        self._dispatch(actions)
        return actions

    def dismiss(self, worker: int) -> list[Action]:
        """Kill a parked worker. No-op if it is not parked."""
        actions: list[Action] = []
        if self._parked.pop(worker, self) is None:
            self._kill(worker, actions)
        return actions

    def exited(self, worker: int, how: object) -> list[Action]:
        """Forget a worker whose process has ended. If it had reached its job and not answered, that is an attempt."""
        actions: list[Action] = []
        self._remove(worker, how, actions)
        self._dispatch(actions)
        return actions

    def awaits_farm(self, job: int) -> bool:
        """Return whether a job has failed here, and waits for the farm's answer."""
        return job in self._jobs and self._jobs[job].failure is not None

    def given_up(self, worker: int, how: object) -> list[Action]:
        """End the job of a killed worker that does not exit. Its slot stays taken until it does."""
        actions: list[Action] = []
        known = self._workers.get(worker)
        if known is not None and known.job is not None:
            self._fail(self._jobs[known.job], Died(how), actions)
            self._kill(worker, actions)
            self._dispatch(actions)
        return actions

    def lost(self, worker: int) -> list[Action]:
        """Kill an unreachable worker."""
        actions: list[Action] = []
        self._kill(worker, actions)
        return actions

    def waiting(self, worker: int) -> list[Action]:
        """Free the worker's slot while it waits for sub-jobs."""
        actions: list[Action] = []
        known = self._workers.get(worker)
        if known is not None and known.job is not None:
            self._release(known)
            self._dispatch(actions)
        return actions

    def resume(self, worker: int) -> list[Action]:
        """Queue the worker for a slot. It continues when it gets its Grant."""
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
        """Start one more job than there are slots, or start one beside an exclusive job, if nothing else can proceed
        (see `stalled`, `waits_for_exclusion`)."""
        actions: list[Action] = []
        if self.stalled or self.waits_for_exclusion:
            self._run_next(actions, beside=True)
        return actions

    # -- the zygote

    def zygote_ready(self) -> list[Action]:
        """Start queued jobs, because the zygote can fork."""
        actions: list[Action] = []
        self._ready = True
        self._dispatch(actions)
        return actions

    def zygote_lost(self, how: object, reason: str = "the zygote died") -> list[Action]:
        """Forget the zygote and its workers. The server starts another zygote unless `broken` is set afterwards.

        It does not count as an attempt of any job. But a job that was running at `zygote_losses` such deaths fails.
        """
        actions: list[Action] = []
        self._ready = False
        self._losses += 1
        for known in list(self._workers.values()):
            job = self._jobs.get(known.job) if known.job is not None else None
            if job is not None and known.reached:
                job.losses += 1
                if job.losses >= self._zygote_losses:
                    self._fail(job, Unavailable(f"{reason} while running this job, {job.losses} times"), actions)
            known.reached = False
            self._remove(known.worker, how, actions, missed=False)
        if self._losses >= self._zygote_losses:
            actions += self.zygote_broken(f"{reason} {self._losses} times in a row")
        return actions

    def zygote_broken(self, reason: str) -> list[Action]:
        """Fail every job, now and later, because no zygote will ever be ready."""
        actions: list[Action] = []
        self._ready = False
        self._broken = reason
        for job in list(self._jobs):
            self._abort(job, Unavailable(reason), actions)
        return actions

    # -- internals

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

    def _dispatch(self, actions: list[Action]) -> None:
        while self._used < self.slots and self._run_next(actions):
            pass

    def _held_exclusively(self) -> bool:
        return any(
            worker.slot is Slot.HELD and worker.job is not None and self._jobs[worker.job].spec.exclusive
            for worker in self._workers.values()
        )

    def _run_next(self, actions: list[Action], beside: bool = False) -> bool:
        if self._on_hold or (not beside and self._held_exclusively()):
            return False
        if self._wanting:
            worker = self._workers[self._wanting.popleft()]
            worker.slot = Slot.HELD
            self._used += 1
            actions.append(Grant(worker.worker))
            return True
        job = self._head() if self._ready else None
        if job is None or (job.spec.exclusive and self._used and not beside):
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
        """Forget the job, deliver its outcome and end its sub-jobs. Its worker, if any, is left without a job."""
        del self._jobs[job.job]
        if self._deduplicated.get(job.spec.dedup_key) == job.job:
            del self._deduplicated[job.spec.dedup_key]
        if job.parent in self._workers:
            self._workers[job.parent].children.pop(job.job, None)
        for ask in job.asks:
            del self._asks[ask]
            actions.append(Deliver(ask, outcome, job.attempt, job.worker))
        if job.away:
            actions.append(Recall(job.job))
        self._queue.pop(job.job, None)
        if job.worker is not None:
            self._orphan(self._workers[job.worker], actions)

    def _fail(self, job: Job, outcome: Outcome, actions: list[Action]) -> None:
        """End a job that no other worker tries; but if the farm has it, too, wait for the farm."""
        if not job.away:
            self._finish(job, outcome, actions)
            return
        job.failure = outcome
        worker, job.worker = job.worker, None
        if worker is not None:
            self._orphan(self._workers[worker], actions)

    def _orphan(self, worker: Worker, actions: list[Action]) -> None:
        worker.job = None
        if worker.slot is Slot.WANTED:
            self._release(worker)
        for child in list(worker.children):
            self._abort(child, Cancelled("the job that submitted it ended"), actions)

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
            outcome = Died(how) if job.attempt > job.spec.retries else None
        else:
            job.attempt -= 1  # it never ran
            job.missed += missed
            outcome = NoWorker(how, job.missed) if job.missed >= (1 if job.spec.best_effort else self._begins) else None
        if outcome is not None:
            self._fail(job, outcome, actions)
            del self._workers[worker]
            return
        self._orphan(known, actions)
        del self._workers[worker]
        self.retries += 1
        job.worker, job.last = None, how
        self._queue[job.job] = None
