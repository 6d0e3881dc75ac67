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

from collections.abc import Hashable

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
from fxpool.pool.server.scheduler_state import Job, Slot, State, Worker
from fxpool.pool.wire.job_spec import JobSpec

__all__ = ["Scheduler"]

# Best-effort jobs that may be queued; each holds its payload, and outlasts its client.
_MOST_BEST_EFFORT = 64


class Scheduler(State):
    """The state machine. Not thread-safe. Every event method returns the actions to carry out."""

    # -- jobs

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
        key = spec.dedup_key if parent is None else ""  # a sub-job ends exactly when the worker does
        if spec.best_effort:
            owner = None
        if self.broken is not None:
            return [Deliver(job, Unavailable(self.broken), 0, None)]
        if parent is not None:
            if self._job(parent) is None:
                return [Deliver(job, Cancelled("the worker that submitted it ended"), 0, None)]
            self._workers[parent].children[job] = None
            owner = None
        elif key in self._deduplicated:
            joined = self._jobs[self._deduplicated[key]]
            joined.asks[job] = owner
            priority, retries = max(joined.spec.priority, spec.priority), max(joined.spec.retries, spec.retries)
            joined.spec = msgspec.structs.replace(joined.spec, priority=priority, retries=retries)
            self._asks[job] = joined.job
            return self._dispatch()  # a best-effort job may have become worth a slot
        if key:
            self._deduplicated[key] = job
        self._jobs[job] = Job(job, {job: owner}, parent, spec, kind, next(self._ages))
        self._asks[job] = job
        if spec.away is not None and parent is None and not spec.best_effort:
            self._jobs[job].away = True
            return [Send(job)]
        self._queue[job] = None
        self._run()
        best_effort = [queued for queued in self._queue if self._jobs[queued].spec.best_effort]
        if len(best_effort) > _MOST_BEST_EFFORT:
            reason = f"more than {_MOST_BEST_EFFORT} best-effort jobs are queued"
            self._abort(best_effort[0], Cancelled(reason))
        return self._take()

    def cancel(self, job: int, reason: str = "cancelled") -> list[Action]:
        """Withdraw an ask. If it was the job's only ask, the worker is killed, and its sub-jobs with it."""
        self._withdraw(job, reason)
        return self._dispatch()

    def owner_left(self, owner: Hashable) -> list[Action]:
        """Cancel all asks of `owner`."""
        top = [job for job in self._jobs.values() if job.parent is None]
        for ask in [ask for job in top for ask, whose in job.asks.items() if whose == owner]:
            self._withdraw(ask, "its caller is gone")
        return self._dispatch()

    def admit(self, jobs: int | None) -> list[Action]:
        """Start no job while this many or more run (None: only the slots limit them). Sub-jobs are always admitted."""
        self._admitted = jobs
        return self._dispatch()

    def hold(self) -> None:
        """Stop starting jobs and granting slots, until `go_on`."""
        self._on_hold = True

    def go_on(self) -> list[Action]:
        """End `hold`."""
        self._on_hold = False
        return self._dispatch()

    def quiet(self) -> list[Action]:
        """Start a best-effort job if only such jobs are queued. Called when no job has run for a while."""
        if self.waits_for_quiet:
            self._quiet = True
            self._run_next()
            self._quiet = False
        return self._take()

    # -- jobs on a farm

    def came(self, job: int, answer: object) -> list[Action]:
        """Deliver the farm's answer. A worker that runs the job, too, is killed."""
        known = self._jobs.get(job)
        if known is not None and known.away:
            known.away = False
            self._abort(job, Answered(answer))
        return self._dispatch()

    def home(self, job: int, *, still: bool = False) -> list[Action]:
        """Queue a job that the farm does not run, unless it has failed here; with `still`, the farm may answer yet."""
        known = self._jobs.get(job)
        if known is not None and known.away:
            known.away = still
            if known.failure is not None:
                self._finish(known, known.failure)
            elif known.worker is None:
                self._queue[job] = None
        return self._dispatch()

    # -- workers

    def reached(self, worker: int) -> list[Action]:
        """Mark that the worker reached its job's function. From now on its death counts as an attempt."""
        job = self._job(worker)
        if job is not None:
            self._workers[worker].reached = True
            job.missed = 0
        return []

    def failed(self, worker: int) -> list[Action]:
        """Stop blaming the worker's death on its job."""
        if worker in self._workers:
            self._workers[worker].reached = False
        return []

    def refuse(self, worker: int, reason: str) -> list[Action]:
        """End the job of this worker as Unavailable, because it cannot be given to any worker."""
        job = self._job(worker)
        if job is not None:
            self._abort(job.job, Unavailable(reason))
        return self._dispatch()

    def answered(self, worker: int, answer: object, *, stays: bool = False) -> list[Action]:
        """Deliver the worker's answer. Its process ends soon, unless it `stays` for another job of its kind."""
        job = self._job(worker)
        if job is None:
            return self._take()
        known = self._workers[worker]
        self._losses = 0
        self._finish(job, Answered(answer))
        if stays and known.kind is not None and known.reached and not known.killed:
            self._park(known)
        elif stays:
            self._kill(worker)  # it waits for a job that will not come
        return self._dispatch()

    def dismiss(self, worker: int) -> list[Action]:
        """Kill a parked worker. No-op if it is not parked."""
        self._dismiss(worker)
        return self._take()

    def exited(self, worker: int, exit_info: object) -> list[Action]:
        """Forget a worker whose process has ended. If it had reached its job and not answered, that is an attempt."""
        self._remove(worker, exit_info)
        return self._dispatch()

    def given_up(self, worker: int, exit_info: object) -> list[Action]:
        """End the job of a killed worker that does not exit. Its slot stays taken until it does."""
        job = self._job(worker)
        if job is not None:
            self._fail(job, Died(exit_info))
            self._kill(worker)
        return self._dispatch()

    def lost(self, worker: int) -> list[Action]:
        """Kill an unreachable worker."""
        self._kill(worker)
        return self._take()

    def waiting(self, worker: int) -> list[Action]:
        """Free the worker's slot while it waits for sub-jobs."""
        if self._job(worker) is not None:
            self._release(self._workers[worker])
        return self._dispatch()

    def resume(self, worker: int) -> list[Action]:
        """Queue the worker for a slot. It continues when it gets its Grant."""
        if self._job(worker) is None:
            return self._take()
        known = self._workers[worker]
        if known.slot is Slot.HELD:
            return [Grant(worker)]
        if known.slot is Slot.NONE:
            known.slot = Slot.WANTED
            self._wanting.append(worker)
        return self._dispatch()

    def relieve(self) -> list[Action]:
        """Start one more job than there are slots, or start one beside an exclusive job, if nothing else can proceed
        (see `stalled`, `waits_for_exclusion`)."""
        if self.stalled or self.waits_for_exclusion:
            self._run_next(beside=True)
        return self._take()

    # -- the zygote

    def zygote_ready(self) -> list[Action]:
        """Start queued jobs, because the zygote can fork."""
        self._ready = True
        return self._dispatch()

    def zygote_lost(self, exit_info: object, reason: str = "the zygote died") -> list[Action]:
        """Forget the zygote and its workers. The server starts another zygote unless `broken` is set afterwards.

        It does not count as an attempt of any job. But a job that was running at `zygote_losses` such deaths fails.
        """
        self._ready = False
        self._losses += 1
        for known in list(self._workers.values()):
            job = self._job(known.worker)
            if job is not None and known.reached:
                job.losses += 1
                if job.losses >= self._zygote_losses:
                    self._fail(job, Unavailable(f"{reason} while running this job, {job.losses} times"))
            known.reached = False
            self._remove(known.worker, exit_info, missed=False)
        if self._losses >= self._zygote_losses:
            return self.zygote_broken(f"{reason} {self._losses} times in a row")
        return self._take()

    def zygote_broken(self, reason: str) -> list[Action]:
        """Fail every job, now and later, because no zygote will ever be ready."""
        self._ready = False
        self.broken = reason
        for job in list(self._jobs):
            self._abort(job, Unavailable(reason))
        return self._take()

    # -- internals

    def _take(self) -> list[Action]:
        """Return the actions of the current event."""
        actions, self._actions = self._actions, []
        return actions

    def _run(self) -> None:
        """Start jobs and grant slots while any are free."""
        while self.used < self.slots and self._run_next():
            pass

    def _dispatch(self) -> list[Action]:
        self._run()
        return self._take()

    def _run_next(self, beside: bool = False) -> bool:
        if self._on_hold or (not beside and self._held_exclusively()):
            return False
        if self._wanting:
            worker = self._workers[self._wanting.popleft()]
            worker.slot = Slot.HELD
            self.used += 1
            self._actions.append(Grant(worker.worker))
            return True
        job = self._head() if self._ready else None
        if job is None or (job.spec.exclusive and self.used and not beside):
            return False
        del self._queue[job.job]
        job.attempt += 1
        self.used += 1
        kept = next((w for w in reversed(self._parked) if self._workers[w].kind == job.kind), None)
        if kept is not None:
            del self._parked[kept]
            job.worker, known = kept, self._workers[kept]
            known.job, known.slot, known.reached = job.job, Slot.HELD, False
            self._actions.append(Assign(kept, job.job, job.attempt, job.last))
            return True
        job.worker = next(self._worker_numbers)
        self._workers[job.worker] = Worker(job.worker, job.job, job.kind)
        self._actions.append(Fork(job.worker, job.job, job.attempt, job.last))
        return True

    def _park(self, worker: Worker) -> None:
        self._release(worker)
        self._parked[worker.worker] = None
        self._actions.append(Park(worker.worker))
        if len(self._parked) > self.slots:
            self._dismiss(next(iter(self._parked)))

    def _dismiss(self, worker: int) -> None:
        if self._parked.pop(worker, self) is None:
            self._kill(worker)

    def _release(self, worker: Worker) -> None:
        if worker.slot is Slot.HELD:
            self.used -= 1
        elif worker.slot is Slot.WANTED:
            self._wanting.remove(worker.worker)
        worker.slot = Slot.NONE

    def _kill(self, worker: int) -> None:
        known = self._workers.get(worker)
        if known is not None and not known.killed:
            known.killed = True
            self._actions.append(Kill(worker))

    def _finish(self, job: Job, outcome: Outcome) -> None:
        """Forget the job, deliver its outcome and end its sub-jobs. Its worker, if any, is left without a job."""
        del self._jobs[job.job]
        if self._deduplicated.get(job.spec.dedup_key) == job.job:
            del self._deduplicated[job.spec.dedup_key]
        if job.parent in self._workers:
            self._workers[job.parent].children.pop(job.job, None)
        for ask in job.asks:
            del self._asks[ask]
            self._actions.append(Deliver(ask, outcome, job.attempt, job.worker))
        if job.away:
            self._actions.append(Recall(job.job))
        self._queue.pop(job.job, None)
        if job.worker is not None:
            self._orphan(self._workers[job.worker])

    def _fail(self, job: Job, outcome: Outcome) -> None:
        """End a job that no other worker tries; but if the farm has it, too, wait for the farm."""
        if not job.away:
            self._finish(job, outcome)
            return
        job.failure = outcome
        worker, job.worker = job.worker, None
        if worker is not None:
            self._orphan(self._workers[worker])

    def _orphan(self, worker: Worker) -> None:
        worker.job = None
        if worker.slot is Slot.WANTED:
            self._release(worker)
        for child in list(worker.children):
            self._abort(child, Cancelled("the job that submitted it ended"))

    def _withdraw(self, ask: int, reason: str) -> None:
        job = self._jobs.get(self._asks.get(ask, -1))
        if job is None:
            return
        if len(job.asks) == 1:
            self._abort(job.job, Cancelled(reason))
            return
        del job.asks[ask], self._asks[ask]
        self._actions.append(Deliver(ask, Cancelled(reason), job.attempt, None))

    def _abort(self, job: int, outcome: Outcome) -> None:
        known = self._jobs.get(job)
        if known is not None:
            self._finish(known, outcome)
            if known.worker is not None:
                self._kill(known.worker)

    def _remove(self, worker: int, exit_info: object, *, missed: bool = True) -> None:
        known = self._workers.get(worker)
        if known is None:
            return
        self._release(known)
        self._parked.pop(worker, None)
        job = self._job(worker)
        if job is None:
            del self._workers[worker]
            return
        outcome: Outcome | None = None
        if known.reached:
            outcome = Died(exit_info) if job.attempt > job.spec.retries else None
        else:
            job.attempt -= 1  # it never ran
            job.missed += missed
            tries = 1 if job.spec.best_effort else self._begins
            outcome = NoWorker(exit_info, job.missed) if job.missed >= tries else None
        if outcome is not None:
            self._fail(job, outcome)
            del self._workers[worker]
            return
        self._orphan(known)
        del self._workers[worker]
        self.retries += 1
        job.worker, job.last = None, exit_info
        self._queue[job.job] = None
