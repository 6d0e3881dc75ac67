"""Carries out the scheduler's decisions: forks workers, gives them jobs, enforces limits, and reports to clients.

The server forwards clients' requests and the zygote's messages to the dispatcher, which does everything else for a job.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fxpool import quantities
from fxpool.errors import ProtocolError
from fxpool.pool.server import decisions as d
from fxpool.pool.server import report, results
from fxpool.pool.server.farms import Farms
from fxpool.pool.server.results import Client, Work, Worker, WorkerResult
from fxpool.pool.server.workers import GRACE_SECONDS, ToZygote, Workers
from fxpool.pool.wire import farm as f
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.config import PoolConfig

__all__ = ["Dispatcher"]

# Seconds without progress before one more job starts than there are slots.
STALL_SECONDS = 0.5
# Seconds without a running job before a best-effort job starts if slots are few: a program that compiles several graphs
# does other work between them.
QUIET_SECONDS = 1.0
# Seconds that an exclusive job (a measurement) waits for running jobs.
EXCLUSION_SECONDS = 3.0
# Characters kept of a name that a client or worker sends.
_SHOWN = 500
# With this many more jobs than slots, it pays to warm up the zygote, although it cannot fork during that time.
_MANY = 3

log = logging.getLogger(__name__)


class Dispatcher(Workers):
    """Runs jobs in workers, on one event loop."""

    def __init__(self, directory: Path, slots: int, config: PoolConfig, to_zygote: ToZygote) -> None:
        super().__init__(directory, slots, config, to_zygote)
        self._hurried = False
        self._numbers = itertools.count(1)
        self._stall = _Alarm(lambda: self.do(self.scheduler.relieve()))
        self._quiet = _Alarm(lambda: self.do(self.scheduler.quiet()))
        self.farms = Farms(self)

    # ------------------------------------------------------------ requests of clients

    def submit(self, client: Client, ask: m.Submit, payload: memoryview) -> None:
        """Queue a client's job. Raises ProtocolError if its number is in use."""
        if ask.job in client.keys:
            raise ProtocolError(f"job number {ask.job} is already in use")
        ask.spec = _printable(ask.spec)
        self.counters["jobs"] += 1
        self.limits.before_a_job()
        work = Work(next(self._numbers), ask, payload, client, None)
        self.callers.add(work)
        self._submit(work, client.keys)
        joined = self.scheduler.job_of(work.key)
        if joined is not None and joined != work.key:
            work.joined = True
            self.counters["joined"] += 1
            for worker in self.workers.values():
                if worker.job == joined and worker.pid is not None:
                    self.limits.keep([worker])
                    client.connection.send(m.Started(job=ask.job, worker=worker.pid, attempt=worker.attempt))
                    self.callers.event([work], work, "begun", worker.begun, worker.pid)

    def cancel(self, client: Client, job: int) -> None:
        """Withdraw a client's job by the client's number for it. No-op if it has ended."""
        if job in client.keys:
            self.do(self.scheduler.cancel(client.keys[job], "by its caller"))
            self.limits.keep(self.workers.values())

    def client_left(self, client: Client) -> None:
        """Withdraw all jobs of a client, except best-effort jobs."""
        self.do(self.scheduler.owner_left(client.number))
        self.callers.left(client)
        self.limits.keep(self.workers.values())

    def _submit(self, work: Work, keys: dict[int, int]) -> None:
        if work.spec.reuse:
            work.kind = results.kind_of(work.ask)
        self._jobs[work.key] = work
        work.submitted = self.loop.time()
        keys[work.ask.job] = work.key
        if self.callers.watch:
            above = [work] if work.worker is None else self._listening(work.worker.job)
            self.callers.event(above, work, "queued", work.submitted)
        pid, asker = (work.client.pid if work.client is not None else 0), work.worker
        owner, parent = (work.client.number if work.client else None), (asker.number if asker else None)
        actions = self.scheduler.submit(work.key, work.spec, kind=work.kind, owner=owner, parent=parent)
        job = self.scheduler.job_of(work.key) or work.key
        part_of = asker.job if asker is not None else 0
        self.history.submitted(work.key, job, work.spec.label, pid, work.submitted, part_of=part_of)
        self.do(actions)

    @property
    def busy(self) -> bool:
        """True while any job is unfinished."""
        return bool(self._jobs)

    @property
    def awaited(self) -> bool:
        """True while any job except best-effort jobs is unfinished."""
        return not all(work.spec.best_effort for work in self._jobs.values())

    @property
    def broken(self) -> str | None:
        """The reason why no zygote will ever fork workers; None if a zygote may."""
        return self.scheduler.broken

    def zygote_ready(self) -> None:
        """Start forking workers for the queued jobs."""
        self.do(self.scheduler.zygote_ready())

    def zygote_broken(self, reason: str) -> None:
        """Fail all jobs, because no zygote will ever fork workers for them."""
        self.do(self.scheduler.zygote_broken(reason))

    # ------------------------------------------------------------ the scheduler's actions

    def do(self, actions: list[d.Action]) -> None:
        """Carry out the scheduler's actions in order."""
        for action in actions:
            if isinstance(action, d.Fork):
                self._fork(action)
            elif isinstance(action, d.Assign):
                self._assign(action)
            elif isinstance(action, d.Deliver):
                self._deliver(action)
            elif isinstance(action, d.Send):
                self._send_away(self._jobs[action.job])
            elif isinstance(action, d.Recall):
                self.farms.recall(action.job)
            elif action.worker not in self.workers:
                continue
            elif isinstance(action, d.Park):
                self._park(self.workers[action.worker])
            elif isinstance(action, d.Kill):
                if self.workers[action.worker].exited is None:
                    self._to_zygote(m.Kill(worker=action.worker), None)
            else:
                worker = self.workers[action.worker]
                worker.send(m.Granted(number=worker.resume))
        stalled = self.scheduler.stalled
        excluded = not stalled and self.scheduler.waits_for_exclusion
        self._stall.set(STALL_SECONDS if stalled else EXCLUSION_SECONDS if excluded else None)
        self._quiet.set(QUIET_SECONDS if self.scheduler.waits_for_quiet else None)
        self.limits.go_on()
        self._hurry()

    def _hurry(self) -> None:
        """Let the zygote warm up, once, if the queue is long and the first workers have been forked."""
        if self._hurried or not self.fork_seconds or len(self._jobs) < self.slots + _MANY:
            return
        alone = sum(work.client is not None and work.kind is None and not work.joined for work in self._jobs.values())
        if alone >= self.slots + _MANY:
            self._hurried = True
            self._to_zygote(m.WarmUp(), None)

    def _deliver(self, action: d.Deliver) -> None:
        work = self._jobs.pop(action.job)
        self.callers.ended(work)
        worker = self.workers.get(action.worker) if action.worker is not None else None
        message, payload = results.result(action, work, worker or work.failed)
        kind, why = ("done", "") if isinstance(message, m.Done) else (message.kind, message.reason)
        self.history.answered(work.key, kind, self.loop.time(), why)
        if worker is not None:
            worker.cancel_timers()
            worker.cancel_limit()
            # The record of an ended worker was kept for its job only, to start that again or to read last messages.
            gone = worker.exited is not None
            then, seconds = (self._worker_gone, 0.0) if gone else (self._kill, GRACE_SECONDS)
            worker.timers = [self.loop.call_later(seconds, then, worker)]
            if isinstance(message, m.Failed) and message.kind != "cancelled":
                self._logs.keep(worker.log_path)
        if work.worker is not None:
            work.worker.keys.pop(work.ask.job, None)
            work.worker.send(message, payload)
        elif work.client is not None:
            work.client.keys.pop(work.ask.job, None)
            work.client.connection.send(message, payload)

    # ------------------------------------------------------------ farms

    def _send_away(self, work: Work) -> None:
        self.callers.event([work], work, "away", self.loop.time())
        self.farms.send(work.key, work.spec, work.payload)

    def came(self, job: int, result: f.Result, payload: memoryview) -> None:
        """Deliver a farm's result."""
        for work in self.asking(job):
            self.callers.event([work], work, "returned", self.loop.time(), name=result.machine)
        self.history.ran_on(job, result.machine, self.loop.time() - result.seconds)
        self.do(self.scheduler.came(job, WorkerResult(True, result.seconds, payload, 0, result.machine)))

    def home(self, job: int, reason: str, detail: str, still: bool) -> None:
        """Run a job here that the farm does not run, or not in time."""
        for work in self.asking(job):
            log.info("job %r stays at home: %s, %s", work.spec.label, reason, detail)
            work.stayed, work.why = reason, detail[:_SHOWN]
        self.do(self.scheduler.home(job, still=still))

    def load(self) -> tuple[int, int]:
        """Return the slots, and the jobs that hold or wait for one."""
        return self.slots, self.scheduler.used + self.scheduler.queued

    def lost(self, job: int) -> None:
        """Note that the farm will not answer a late job."""
        self.do(self.scheduler.home(job))

    # ------------------------------------------------------------ messages of workers

    def _from_worker(self, worker: Worker, message: m.FromWorker, payload: memoryview) -> None:
        if isinstance(message, (m.LogRecord, m.WarningRecord)):
            self.callers.record(worker.job, message)
        elif isinstance(message, m.Begun):
            self._reached(worker)
        elif isinstance(message, m.Unable):
            worker.unable = message
        elif isinstance(message, m.Returned):
            answer = WorkerResult(message.ok, message.seconds, payload, message.pid)
            self._worker_event(worker, "ended")
            self.do(self.scheduler.answered(worker.number, answer, stays=message.stays))
        elif isinstance(message, m.Phase):
            worker.phase = message.name[:_SHOWN]
            self.history.phase(worker.job, worker.phase, self.loop.time())
            self._worker_event(worker, "phase", worker.phase)
        elif isinstance(message, m.Submit):
            self._sub_job(worker, message, payload)
        elif isinstance(message, m.Cancel):
            if message.job in worker.keys:
                self.do(self.scheduler.cancel(worker.keys[message.job], "by its caller"))
        elif isinstance(message, m.Waiting):
            self.do(self.scheduler.waiting(worker.number))
        elif isinstance(message, m.Resume):
            worker.resume = message.number
            self.do(self.scheduler.resume(worker.number))
        elif isinstance(message, m.Ask):
            self.callers.ask(worker, message, payload)
        elif isinstance(message, m.SlotsQuery):
            worker.send(m.SlotsReply(number=message.number, free=self.scheduler.free))

    def _sub_job(self, worker: Worker, message: m.Submit, payload: memoryview) -> None:
        if message.job in worker.keys:
            raise ProtocolError(f"sub-job number {message.job} is already in use")
        ask = results.as_part(message, worker.work.ask)
        ask.spec = _printable(ask.spec)
        self.counters["sub_jobs"] += 1
        self._submit(Work(next(self._numbers), ask, payload, None, worker), worker.keys)

    def past(self, query: m.HistoryQuery) -> m.History:
        """Return the jobs, running ones included, that changed after the change named by `query`."""
        jobs = self.history.since(query.since)
        return m.History(number=query.number, latest=self.history.latest, now=self.loop.time(), jobs=jobs)

    def status(self, taken: Mapping[int, int]) -> dict[str, Any]:
        """Return slots, queue, limits and workers as plain data for `fxpool status`. `taken` maps pids to bytes."""
        works, workers = self._jobs.items(), self.workers.values()
        scheduler, now = self.scheduler, self.loop.time()
        with_worker = {worker.job for worker in workers}
        return {
            "slots_free": scheduler.free,
            "queued": scheduler.queued,
            "waiting": report.waiting(works, with_worker, scheduler.job_of, scheduler.order, now),
            "limits": self.limits.facts(),
            "running": [
                report.running(worker, self._listening(worker.job), taken, now)
                for worker in workers
                if scheduler.asks_of(worker.job)
            ],
            "workers": [worker.pid for worker in workers if worker.pid is not None],
            "fork_seconds": self.fork_seconds,
            "jobs": self.history.facts(),
            "farms": self.farms.facts(),
        }


def _printable(spec: m.JobSpec) -> m.JobSpec:
    """Return a job's specification with its label on one line, and not too long."""
    return msgspec.structs.replace(spec, label=quantities.one_line(spec.label[:_SHOWN]))


class _Alarm:
    """A timer that is set while there is a reason for it."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float | None) -> None:
        """Call after `seconds`, or earlier if it was set before; None: do not call."""
        if self._timer is not None and (seconds is None or self._timer.when() > self._loop.time() + seconds):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and seconds is not None:
            self._timer = self._loop.call_later(seconds, self._over)

    def _over(self) -> None:
        self._timer = None
        self._call()
