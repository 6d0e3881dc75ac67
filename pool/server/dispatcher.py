"""Carries out the scheduler's decisions: forks workers, gives them jobs, enforces limits, and reports to clients.

The server forwards clients' requests and the zygote's messages to the dispatcher, which does everything else for a job.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fxpool import quantities
from fxpool.errors import ProtocolError
from fxpool.pool.host import processes
from fxpool.pool.server import decisions as d
from fxpool.pool.server import outcomes, report
from fxpool.pool.server.bounds import Bounds
from fxpool.pool.server.farms import Farms, Host
from fxpool.pool.server.history import History
from fxpool.pool.server.job_events import JobEvents
from fxpool.pool.server.outcomes import Client, Exceeded, JobLogs, Work, Worker, WorkerResult
from fxpool.pool.server.questions import Questions
from fxpool.pool.server.records import Records
from fxpool.pool.server.scheduler import Scheduler
from fxpool.pool.server.stops import Stops
from fxpool.pool.server.watch import Limits, Watch
from fxpool.pool.wire import farm as f
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.connection import Connection
from fxpool.pool.wire.protocol import Message, encode

__all__ = ["GRACE_SECONDS", "Dispatcher"]

# Seconds after which a worker that answered, or whose socket closed, is killed if it has not ended.
GRACE_SECONDS = 2.0
STALL_SECONDS = 0.5
# Seconds without a running job before a best-effort job starts if slots are few: a program that compiles several graphs
# does other work between them.
QUIET_SECONDS = 1.0
# Seconds that an exclusive job (a measurement) waits for running jobs.
ALONE_SECONDS = 3.0
# Seconds that a reusable worker waits for another job.
PARKED_SECONDS = 5.0
# Characters kept of a name that a client or worker sends.
_SHOWN = 500
# Seconds after the fork within which a worker must reach its job's function, or be killed.
BEGIN_SECONDS = 60.0
# Seconds before a job whose worker did not start is tried again: from the first, doubled each time, to the second.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
# With this many more jobs than slots, it pays to warm up the zygote, although it cannot fork during that time.
_MANY = 3

log = logging.getLogger(__name__)

#: Sends a message to the zygote, with an optional socket attached. No-op without a zygote.
ToZygote = Callable[[m.ToZygote, socket.socket | None], None]


class Dispatcher:
    """Runs jobs in workers, on one event loop."""

    def __init__(self, directory: Path, slots: int, limits: Limits, patience: float, to_zygote: ToZygote) -> None:
        self.loop = asyncio.get_running_loop()
        self.slots = slots
        self.scheduler = Scheduler(slots)
        names = (
            "jobs",
            "joined",
            "sub_jobs",
            "forks",
            "prepared",
            "reused",
            "retries",
            "deaths",
            "not_begun",
            "dropped_records",
        )
        self.counters = dict.fromkeys(names, 0)
        self.fork_seconds = 0.0
        self.limits = limits
        self._workers: dict[int, Worker] = {}
        self._bounds = Bounds(limits, self._workers, self._asking, self._exceeded)
        self.history = History()
        bounds, took = self._bounds, self.history.took
        self.watch = Watch(limits, self.scheduler, self.do, bounds.trees, bounds.memory, self._exceeded, took)
        self._patience = patience
        self._stops = Stops(self._workers, patience, self._suspended)
        self._directory = directory
        self._to_zygote = to_zygote
        self._logs = JobLogs(directory / "logs")
        self._jobs: dict[int, Work] = {}
        self._job_events = JobEvents()
        self._records = Records(self.counters)
        self._questions = Questions(lambda worker: self._listening(worker.job), self._send)
        self._hurried = False
        self._numbers = 0
        self._stall: asyncio.TimerHandle | None = None
        self._quiet: asyncio.TimerHandle | None = None
        self._still_since: float | None = None
        self._never_stopped: set[int] = set()
        self.farms = Farms(Host(self._came, self._home, self._lost, self._load))

    # ------------------------------------------------------------ requests of clients

    def submit(self, client: Client, ask: m.Submit, payload: memoryview) -> None:
        """Queue a client's job. Raises ProtocolError if its number is in use."""
        if ask.job in client.keys:
            raise ProtocolError(f"job number {ask.job} is already in use")
        ask.spec = _printable(ask.spec)
        self.counters["jobs"] += 1
        self.watch.before_a_job()
        work = Work(self._number(), ask, payload, client, None)
        self._job_events.watch(work)
        self._submit(work, client.keys)
        joined = self.scheduler.job_of(work.key)
        if joined is not None and joined != work.key:
            work.joined = True
            self.counters["joined"] += 1
            for worker in self._workers.values():
                if worker.job == joined and worker.pid is not None:
                    self._bounds.keep([worker])
                    client.connection.send(m.Started(job=ask.job, worker=worker.pid, attempt=worker.attempt))
                    self._job_events.tell([work], work, "begun", worker.begun, worker.pid)

    def cancel(self, client: Client, job: int) -> None:
        """Withdraw a client's job by the client's number for it. No-op if it has ended."""
        if job in client.keys:
            self.do(self.scheduler.cancel(client.keys[job], "by its caller"))
            self._bounds.keep(self._workers.values())

    def answer(self, client: Client, message: m.Answer, payload: memoryview) -> None:
        """Pass a client's answer to the worker that asked. No-op if no worker waits for it."""
        self._questions.answer(client, message, payload)

    def client_left(self, client: Client) -> None:
        """Withdraw all jobs of a client, except best-effort jobs."""
        self.do(self.scheduler.owner_left(client.number))
        self._questions.left(client)
        self._bounds.keep(self._workers.values())

    def _submit(self, work: Work, keys: dict[int, int]) -> None:
        if work.spec.reuse:
            work.kind = outcomes.kind_of(work.ask)
        self._jobs[work.key] = work
        work.asked = self.loop.time()
        keys[work.ask.job] = work.key
        if self._job_events:
            above = [work] if work.worker is None else self._listening(work.worker.job)
            self._job_events.tell(above, work, "queued", work.asked)
        pid, asker = (work.client.pid if work.client is not None else 0), work.worker
        owner, parent = (work.client.number if work.client else None), (asker.number if asker else None)
        actions = self.scheduler.submit(work.key, work.spec, kind=work.kind, owner=owner, parent=parent)
        job = self.scheduler.job_of(work.key) or work.key
        part_of = asker.job if asker is not None else 0
        self.history.asked(work.key, job, work.spec.label, pid, work.asked, part_of=part_of)
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

    # ------------------------------------------------------------ while clients measure

    @property
    def stopped(self) -> int:
        """Number of suspended workers."""
        return sum(worker.stopped for worker in self._workers.values())

    def stand_still(self, never: set[int]) -> None:
        """Start no job and suspend all workers until `go_on`, except those whose process group is in `never`."""
        self.scheduler.hold()
        self.watch.rests = True
        self._never_stopped = never
        if self._still_since is None:
            self._still_since = self.loop.time()
        for worker in self._workers.values():
            self._stop(worker)

    def _stop(self, worker: Worker) -> None:
        if worker.pid is None or worker.stopped or worker.exited is not None or worker.pid in self._never_stopped:
            return
        if not self.scheduler.asks_of(worker.job):
            return  # it has answered, and will exit or is parked
        worker.stopped = True
        if worker.limit_timer is not None:
            worker.limit_timer.cancel()
        self._to_zygote(m.Stop(worker=worker.number), None)

    def go_on(self) -> None:
        """End `stand_still`. The time does not count towards the timeouts of jobs."""
        assert self._still_since is not None
        since, self._still_since = self._still_since, None
        self.watch.rests = False
        stopped = [worker for worker in self._workers.values() if worker.stopped]
        for worker in stopped:
            worker.stopped = False
            if worker.exited is None:
                self._to_zygote(m.GoOn(worker=worker.number), None)
            if worker.reached is not None:
                worker.reached += self.loop.time() - max(since, worker.reached)
        self._bounds.keep(stopped)
        self.do(self.scheduler.go_on())

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
            elif action.worker not in self._workers:
                continue
            elif isinstance(action, d.Park):
                self._park(self._workers[action.worker])
            elif isinstance(action, d.Kill):
                if self._workers[action.worker].exited is None:
                    self._to_zygote(m.Kill(worker=action.worker), None)
            else:
                worker = self._workers[action.worker]
                self._send(worker, m.Granted(number=worker.resume))
        self._watch_for_stall()
        self._watch_for_quiet()
        self.watch.go_on()
        self._stops.go_on()
        self._hurry()

    def _hurry(self) -> None:
        """Let the zygote warm up, once, if the queue is long and the first workers have been forked."""
        if self._hurried or not self.fork_seconds or len(self._jobs) < self.slots + _MANY:
            return
        alone = sum(work.client is not None and work.kind is None and not work.joined for work in self._jobs.values())
        if alone >= self.slots + _MANY:
            self._hurried = True
            self._to_zygote(m.WarmUp(), None)

    def _watch_for_stall(self) -> None:
        stalled = self.scheduler.stalled
        if not stalled and not self.scheduler.waits_for_exclusion:
            if self._stall is not None:
                self._stall.cancel()
                self._stall = None
            return
        at = self.loop.time() + (STALL_SECONDS if stalled else ALONE_SECONDS)
        if self._stall is None or self._stall.when() > at:
            if self._stall is not None:
                self._stall.cancel()
            self._stall = self.loop.call_at(at, self._relieve)

    def _watch_for_quiet(self) -> None:
        if not self.scheduler.waits_for_quiet:
            if self._quiet is not None:
                self._quiet.cancel()
                self._quiet = None
        elif self._quiet is None:
            self._quiet = self.loop.call_later(QUIET_SECONDS, self._went_quiet)

    def _went_quiet(self) -> None:
        self._quiet = None
        self.do(self.scheduler.quiet())

    def _relieve(self) -> None:
        self._stall = None
        self.do(self.scheduler.relieve())

    def _worker_tells(self, worker: Worker, what: m.What, name: str = "") -> None:
        if self._job_events and worker.pid is not None and self.scheduler.asks_of(worker.job):
            self._job_events.tell(self._listening(worker.job), worker.work, what, self.loop.time(), worker.pid, name)

    def _deliver(self, action: d.Deliver) -> None:
        work = self._jobs.pop(action.job)
        self._job_events.forget(work)
        self._questions.withdrawn(work)
        worker = self._workers.get(action.worker) if action.worker is not None else None
        message, payload = outcomes.outcome(action, work, worker or work.failed)
        how, why = report.ending(message)
        self.history.answered(work.key, how, self.loop.time(), why)
        if worker is not None:
            for timer in (*worker.timers, *filter(None, [worker.limit_timer])):
                timer.cancel()
            # The record of an ended worker was kept for its job only, to start that again or to read last messages.
            gone = worker.exited is not None
            then, seconds = (self._worker_gone, 0.0) if gone else (self._kill, GRACE_SECONDS)
            worker.timers = [self.loop.call_later(seconds, then, worker)]
            if isinstance(message, m.Failed) and message.kind != "cancelled":
                self._logs.keep(worker.log_path)
        if work.worker is not None:
            work.worker.keys.pop(work.ask.job, None)
            self._send(work.worker, message, payload)
        elif work.client is not None:
            work.client.keys.pop(work.ask.job, None)
            self._records.end(work)
            work.client.connection.send(message, payload)

    def _fork(self, action: d.Fork) -> None:
        # The first caller may have left; any caller that still waits will do.
        work = self._asking(action.job)[0]
        path = self._logs.path(action.job, action.attempt)
        scratch = self._directory / "scratch" / path.stem
        worker = Worker(action.worker, action.job, work, action.attempt, path, scratch, action.last)
        self._workers[action.worker] = worker
        run = outcomes.order(worker, self.slots)
        try:
            encode(run)
        except ProtocolError as error:
            self.loop.call_soon(self._refuse, worker, f"cannot send this job to a worker: {error}")
            return
        try:
            self._logs.make()
            ours, theirs = socket.socketpair()
        except OSError as error:
            worker.unable = outcomes.unable("the server cannot start a worker", error)
            self.loop.call_soon(
                self.on_exited,
                m.Exited(worker=action.worker, exit_code=None, signal=None, failure=worker.unable.reason),
            )
            return

        def on_frame(message: m.FromWorker, payload: memoryview) -> None:
            self._from_worker(worker, message, payload)

        def on_end(error: Exception | None) -> None:
            self._worker_silent(worker, error)

        worker.connection = Connection(ours, m.FromWorker, on_frame, on_end)
        self._to_zygote(m.Fork(worker=action.worker, log_path=str(path), branch=outcomes.branch_of(work.ask)), theirs)
        self.counters["forks"] += 1
        self._send(worker, run, work.payload)

    # ------------------------------------------------------------ farms

    def _send_away(self, work: Work) -> None:
        self._job_events.tell([work], work, "away", self.loop.time())
        self.farms.send(work.key, work.spec, work.payload)

    def _came(self, job: int, result: f.Result, payload: memoryview) -> None:
        """Deliver a farm's result."""
        for work in self._asking(job):
            self._job_events.tell([work], work, "returned", self.loop.time(), name=result.machine)
        self.history.ran_on(job, result.machine, self.loop.time() - result.seconds)
        self.do(self.scheduler.came(job, WorkerResult(True, result.seconds, payload, 0, result.machine)))

    def _home(self, job: int, reason: str, detail: str, still: bool) -> None:
        """Run a job here that the farm does not run, or not in time."""
        for work in self._asking(job):
            log.info("job %r stays at home: %s, %s", work.spec.label, reason, detail)
            work.stayed, work.why = reason, detail[:_SHOWN]
        self.do(self.scheduler.home(job, still=still))

    def _load(self) -> tuple[int, int]:
        return self.slots, self.scheduler.used + self.scheduler.queued

    def _lost(self, job: int) -> None:
        """Note that the farm will not answer a late job."""
        self.do(self.scheduler.home(job))

    def _await_farm(self, worker: Worker) -> None:
        """Remember the last worker of a job that waits for the farm only: the job's error names it."""
        if self.scheduler.awaits_farm(worker.job):
            for work in self._asking(worker.job):
                log.info("job %r has failed here, and waits for the farm", work.spec.label)
                work.failed = worker

    # ------------------------------------------------------------ reusable workers

    def _park(self, worker: Worker) -> None:
        for timer in worker.timers:
            timer.cancel()
        worker.timers = [self.loop.call_later(PARKED_SECONDS, lambda: self.do(self.scheduler.dismiss(worker.number)))]

    def _assign(self, action: d.Assign) -> None:
        worker = self._workers[action.worker]
        for timer in worker.timers:
            timer.cancel()
        worker.timers = []
        worker.job, worker.attempt, worker.last = action.job, action.attempt, action.last
        worker.work = self._asking(action.job)[0]
        worker.phase, worker.keys = "", {}
        worker.reached, worker.paused = None, False
        self.counters["reused"] += 1
        self._begin(worker)
        try:
            self._send(worker, outcomes.order(worker, self.slots), worker.work.payload)
        except ProtocolError as error:  # longer than a frame may be
            self.loop.call_soon(self._refuse, worker, f"cannot send this job to a worker: {error}")

    # ------------------------------------------------------------ messages of workers

    def _send(self, worker: Worker, message: Message, payload: memoryview | bytes = b"") -> None:
        if worker.connection is not None and not worker.connection.closed:
            worker.connection.send(message, payload)

    def _from_worker(self, worker: Worker, message: m.FromWorker, payload: memoryview) -> None:
        if isinstance(message, (m.LogRecord, m.WarningRecord)):
            for work in self._listening(worker.job):
                self._records.tell(work, message)
        elif isinstance(message, m.Begun):
            self._reached(worker)
        elif isinstance(message, m.Unable):
            worker.unable = message
        elif isinstance(message, m.Returned):
            answer = WorkerResult(message.ok, message.seconds, payload, message.pid)
            self._worker_tells(worker, "ended")
            self.do(self.scheduler.answered(worker.number, answer, stays=message.stays))
        elif isinstance(message, m.Phase):
            worker.phase = message.name[:_SHOWN]
            self.history.phase(worker.job, worker.phase, self.loop.time())
            self._worker_tells(worker, "phase", worker.phase)
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
            self._questions.ask(worker, message, payload)
        elif isinstance(message, m.SlotsQuery):
            self._send(worker, m.SlotsReply(number=message.number, free=self.scheduler.free))

    def _sub_job(self, worker: Worker, message: m.Submit, payload: memoryview) -> None:
        if message.job in worker.keys:
            raise ProtocolError(f"sub-job number {message.job} is already in use")
        ask = outcomes.as_part(message, worker.work.ask)
        ask.spec = _printable(ask.spec)
        self.counters["sub_jobs"] += 1
        self._submit(Work(self._number(), ask, payload, None, worker), worker.keys)

    def _asking(self, job: int) -> list[Work]:
        return [self._jobs[ask] for ask in self.scheduler.asks_of(job)]

    def _listening(self, job: int) -> list[Work]:
        """Return the clients' jobs that this job belongs to: its own requests, or those of its parent."""
        jobs: list[Work] = []
        for work in self._asking(job):
            jobs += [work] if work.worker is None else self._listening(work.worker.job)
        return jobs

    def _worker_silent(self, worker: Worker, error: Exception | None) -> None:
        """Handle the end of a worker's socket. Normally the process has ended, and the zygote reports that."""
        if error is not None:
            log.warning("worker %s: %s", worker.pid, error)
            if isinstance(error, ProtocolError):
                worker.broken = str(error)
            else:  # not the worker's fault: the server has no memory for what it sent
                worker.unable = outcomes.unable("the server cannot read from the worker", error)
                self.do(self.scheduler.failed(worker.number))
                worker.reached = None
            self._kill(worker)
        if worker.exited is not None:
            self._worker_gone(worker)
        else:
            worker.timers.append(self.loop.call_later(GRACE_SECONDS, self._kill, worker))

    def _kill(self, worker: Worker) -> None:
        self.do(self.scheduler.lost(worker.number))

    def _refuse(self, worker: Worker, reason: str) -> None:
        """Fail a job that cannot be given to any worker."""
        if worker.number in self._workers:
            self.do(self.scheduler.refuse(worker.number, reason))
            if worker.pid is None:
                self.on_exited(m.Exited(worker=worker.number, exit_code=None, signal=None, failure=reason))

    # ------------------------------------------------------------ limits

    def _exceeded(self, worker: Worker, how: Exceeded) -> None:
        """Kill a worker over its limit. When it has ended, its job is retried or fails."""
        if worker.exceeded is not None or not self.scheduler.asks_of(worker.job):
            return
        worker.exceeded = how
        log.warning(
            "job %r in worker %s: %s (phase %r)", worker.work.spec.label, worker.pid, outcomes.describe(how), how.phase
        )
        self._kill(worker)
        # The callers must not wait for a process that the kernel does not end (a disk hangs, say).
        worker.timers.append(self.loop.call_later(GRACE_SECONDS, self._give_up, worker, how))

    def _suspended(self, worker: Worker) -> None:
        """Kill a worker that something keeps suspended. Its job is retried, or fails with this reason."""
        worker.broken = f"it was suspended for more than {self._patience:g} s (SIGSTOP, a debugger)"
        log.warning("job %r in worker %s: %s", worker.work.spec.label, worker.pid, worker.broken)
        self._kill(worker)

    def _give_up(self, worker: Worker, how: Exceeded) -> None:
        if not self._bounds.allowed_since(worker):
            self.do(self.scheduler.given_up(worker.number, how))
            self._await_farm(worker)

    # ------------------------------------------------------------ messages of the zygote

    def on_forked(self, message: m.Forked) -> None:
        """Record a worker's pid, and tell the callers that their job has started."""
        self.fork_seconds = message.seconds
        self.counters["prepared"] += message.prepared
        worker = self._workers.get(message.worker)
        if worker is None:
            return
        worker.pid = message.pid
        self._begin(worker)
        if self._still_since is not None:
            self._stop(worker)

    def _begin(self, worker: Worker) -> None:
        """Tell the callers that their job has a worker."""
        assert worker.pid is not None
        worker.begun = self.loop.time()
        asking = self._asking(worker.job)
        if not asking:
            return
        worker.timers.append(self.loop.call_later(BEGIN_SECONDS, self._never_began, worker))
        reason = ""
        if worker.last is not None:
            self.counters["retries"] += 1
            reason = outcomes.describe(worker.last)
        self.history.begun(worker.job, worker.pid, worker.attempt, worker.begun, reason)
        for work in asking:
            if work.client is not None:
                work.client.connection.send(
                    m.Started(job=work.ask.job, worker=worker.pid, attempt=worker.attempt, reason=reason)
                )
        self._worker_tells(worker, "begun")

    def _reached(self, worker: Worker) -> None:
        """Mark that a worker reached its job's function: from now on limits apply, and a death is blamed on the job."""
        if worker.reached is None:
            worker.reached = self.loop.time()
            self.do(self.scheduler.reached(worker.number))
            self._bounds.keep([worker])

    def _never_began(self, worker: Worker) -> None:
        if worker.stopped:
            worker.timers.append(self.loop.call_later(BEGIN_SECONDS, self._never_began, worker))
        elif worker.reached is None and self.scheduler.asks_of(worker.job):
            worker.unable = m.Unable(reason=f"the worker had not started its job {BEGIN_SECONDS:g} s after the fork")
            self._kill(worker)

    def on_exited(self, message: m.Exited) -> None:
        """Record a worker's exit, and handle it after its last messages have been read."""
        worker = self._workers.get(message.worker)
        if worker is None:
            return
        worker.exited = message
        if worker.connection is None or worker.connection.closed:
            self._worker_gone(worker)
        else:
            # Its last messages may still be in the socket: wait for the socket's end.
            worker.timers.append(self.loop.call_later(GRACE_SECONDS, self._worker_gone, worker))

    def _worker_gone(self, worker: Worker) -> None:
        if worker.number not in self._workers:
            return
        assert worker.exited is not None
        wanted = bool(self.scheduler.asks_of(worker.job))
        if wanted and worker.reached is None and not worker.paused:
            # The worker keeps its slot until then, because another worker would fail for the same reason.
            worker.paused = True
            self.counters["not_begun"] += 1
            log.warning(
                "could not start a worker for job %r: %s",
                worker.work.spec.label,
                outcomes.why_unable(worker.exited, worker)[0],
            )
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** self.scheduler.missed(worker.job))
            worker.timers.append(self.loop.call_later(pause, self._worker_gone, worker))
            return
        if wanted and self._bounds.allowed_since(worker):
            self.do(self.scheduler.failed(worker.number))
        if wanted and worker.reached is not None:
            self.counters["deaths"] += 1
            self._logs.keep(worker.log_path)
            self._worker_tells(worker, "ended", "its worker died")
        # Forget the worker only after the scheduler's decision, because the message to the caller includes its facts.
        self.do(self.scheduler.exited(worker.number, worker.exceeded or worker.exited))
        self._forget(worker)

    def zygote_gone(self, reason: str) -> None:
        """Handle the zygote's death: its workers died with it, and the processes that they started are killed."""
        for worker in self._workers.values():
            if worker.pid is not None:
                processes.kill_group(worker.pid)
        processes.reap_strays(self.farms.pids, seconds=2.0)
        for worker in list(self._workers.values()):
            if worker.connection is not None:
                worker.connection.drain()
        for worker in self._workers.values():
            if worker.pid is not None and self.scheduler.asks_of(worker.job):
                self._logs.keep(worker.log_path)
        how = m.Exited(
            worker=0, exit_code=None, signal=int(signal.SIGKILL), failure=f"{reason}, and its workers with it"
        )
        self.do(self.scheduler.zygote_lost(how, reason))
        self.forget_all()

    def forget_all(self) -> None:
        """Forget all workers, which have ended, and stop checking memory."""
        self.watch.end()
        for worker in list(self._workers.values()):
            self._forget(worker)

    def _forget(self, worker: Worker) -> None:
        self._await_farm(worker)
        self._workers.pop(worker.number, None)
        self._questions.forget(worker)
        for timer in worker.timers:
            timer.cancel()
        worker.timers = []
        if worker.limit_timer is not None:
            worker.limit_timer.cancel()
        if worker.connection is not None:
            worker.connection.close()
        self._logs.discard(worker.log_path)
        # A killed worker could not remove it, and neither could its compilers.
        shutil.rmtree(worker.scratch, ignore_errors=True)

    def past(self, query: m.HistoryQuery) -> m.History:
        """Return the jobs, running ones included, that changed after the change named by `query`."""
        jobs = self.history.since(query.since)
        return m.History(number=query.number, latest=self.history.latest, now=self.loop.time(), jobs=jobs)

    def status(self, taken: Mapping[int, int]) -> dict[str, Any]:
        """Return slots, queue, limits and workers as plain data for `fxpool status`. `taken` maps pids to bytes."""
        works, workers = self._jobs.items(), self._workers.values()
        scheduler, now = self.scheduler, self.loop.time()
        with_worker = {worker.job for worker in workers}
        return {
            "slots_free": scheduler.free,
            "queued": scheduler.queued,
            "waiting": report.waiting(works, with_worker, scheduler.job_of, scheduler.order, now),
            "limits": {**self.limits.facts(), "pressed": self.watch.pressed},
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

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers


def _printable(spec: m.JobSpec) -> m.JobSpec:
    """Return a job's specification with its label on one line, and not too long."""
    return msgspec.structs.replace(spec, label=quantities.one_line(spec.label[:_SHOWN]))
