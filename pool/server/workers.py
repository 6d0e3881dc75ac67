"""The server's workers: starts them as the scheduler decides, and handles their progress and their ends."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from fxpool.errors import ProtocolError
from fxpool.pool.host import processes
from fxpool.pool.server import decisions as d
from fxpool.pool.server import results
from fxpool.pool.server.caller_messages import Callers
from fxpool.pool.server.farms import Farms
from fxpool.pool.server.history import History
from fxpool.pool.server.job_limits import JobLimits
from fxpool.pool.server.results import Exceeded, JobLogs, Work, Worker
from fxpool.pool.server.scheduler import Scheduler
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.config import PoolConfig
from fxpool.pool.wire.connection import Connection
from fxpool.pool.wire.protocol import encode

__all__ = ["GRACE_SECONDS", "ToZygote", "Workers"]

# Seconds after which a worker that answered, or whose socket closed, is killed if it has not ended.
GRACE_SECONDS = 2.0
# Seconds that a reusable worker waits for another job.
PARKED_SECONDS = 5.0
# Seconds after the fork within which a worker must reach its job's function, or be killed.
BEGIN_SECONDS = 60.0
# Seconds before a job whose worker did not start is tried again: from the first, doubled each time, to the second.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0

_COUNTERS = (
    "jobs", "joined", "sub_jobs", "forks", "prepared", "reused", "retries", "deaths", "not_begun", "dropped_records",
)  # fmt: skip

log = logging.getLogger(__name__)

#: Sends a message to the zygote, with an optional socket attached. No-op without a zygote.
ToZygote = Callable[[m.ToZygote, socket.socket | None], None]


class Workers:
    """The workers and the jobs that they run. The dispatcher adds the requests and the scheduler's other decisions."""

    farms: Farms

    def __init__(self, directory: Path, slots: int, config: PoolConfig, to_zygote: ToZygote) -> None:
        self.loop = asyncio.get_running_loop()
        self.slots = slots
        self.scheduler = Scheduler(slots)
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self.fork_seconds = 0.0
        self.workers: dict[int, Worker] = {}
        self.history = History()
        self.on_memory = self.history.took
        self.limits = JobLimits(config, self)
        self.callers = Callers(self._listening, self.counters)
        self._patience = config.patience
        self._directory = directory
        self._to_zygote = to_zygote
        self._logs = JobLogs(directory / "logs")
        self._jobs: dict[int, Work] = {}

    def do(self, actions: list[d.Action]) -> None:
        """Carry out the scheduler's actions in order."""
        raise NotImplementedError

    def _from_worker(self, worker: Worker, message: m.FromWorker, payload: memoryview) -> None:
        raise NotImplementedError

    def asking(self, job: int) -> list[Work]:
        return [self._jobs[ask] for ask in self.scheduler.asks_of(job)]

    def _listening(self, job: int) -> list[Work]:
        """Return the clients' jobs that this job belongs to: its own requests, or those of its parent."""
        jobs: list[Work] = []
        for work in self.asking(job):
            jobs += [work] if work.worker is None else self._listening(work.worker.job)
        return jobs

    def _worker_event(self, worker: Worker, kind: m.EventKind, name: str = "") -> None:
        if self.callers.watch and worker.pid is not None and self.scheduler.asks_of(worker.job):
            self.callers.event(self._listening(worker.job), worker.work, kind, self.loop.time(), worker.pid, name)

    # ------------------------------------------------------------ starts

    def _fork(self, action: d.Fork) -> None:
        # The first caller may have left; any caller that still waits will do.
        work = self.asking(action.job)[0]
        path = self._logs.path(action.job, action.attempt)
        scratch = self._directory / "scratch" / path.stem
        worker = Worker(action.worker, action.job, work, action.attempt, path, scratch, action.last)
        self.workers[action.worker] = worker
        run = results.order(worker, self.slots)
        try:
            encode(run)
        except ProtocolError as error:
            self.loop.call_soon(self._refuse, worker, f"cannot send this job to a worker: {error}")
            return
        try:
            self._logs.make()
            ours, theirs = socket.socketpair()
        except OSError as error:
            worker.unable = m.Unable.of("the server cannot start a worker", error)
            self.loop.call_soon(self.on_exited, m.Exited(worker=action.worker, failure=worker.unable.reason))
            return

        def on_frame(message: m.FromWorker, payload: memoryview) -> None:
            self._from_worker(worker, message, payload)

        def on_end(error: Exception | None) -> None:
            self._worker_silent(worker, error)

        worker.connection = Connection(ours, m.FromWorker, on_frame, on_end)
        self._to_zygote(m.Fork(worker=action.worker, log_path=str(path), branch=results.branch_of(work.ask)), theirs)
        self.counters["forks"] += 1
        worker.send(run, work.payload)

    def _park(self, worker: Worker) -> None:
        worker.cancel_timers()
        worker.timers = [self.loop.call_later(PARKED_SECONDS, lambda: self.do(self.scheduler.dismiss(worker.number)))]

    def _assign(self, action: d.Assign) -> None:
        worker = self.workers[action.worker]
        worker.cancel_timers()
        worker.job, worker.attempt, worker.last = action.job, action.attempt, action.last
        worker.work = self.asking(action.job)[0]
        worker.phase, worker.keys = "", {}
        worker.reached, worker.paused = None, False
        self.counters["reused"] += 1
        self._begin(worker)
        try:
            worker.send(results.order(worker, self.slots), worker.work.payload)
        except ProtocolError as error:  # longer than a frame may be
            self.loop.call_soon(self._refuse, worker, f"cannot send this job to a worker: {error}")

    def _begin(self, worker: Worker) -> None:
        """Tell the callers that their job has a worker."""
        assert worker.pid is not None
        worker.begun = self.loop.time()
        asking = self.asking(worker.job)
        if not asking:
            return
        worker.timers.append(self.loop.call_later(BEGIN_SECONDS, self._never_began, worker))
        reason = ""
        if worker.last is not None:
            self.counters["retries"] += 1
            reason = results.describe(worker.last)
        self.history.begun(worker.job, worker.pid, worker.attempt, worker.begun, reason)
        for work in asking:
            if work.client is not None:
                work.client.connection.send(
                    m.Started(job=work.ask.job, worker=worker.pid, attempt=worker.attempt, reason=reason)
                )
        self._worker_event(worker, "begun")

    def _reached(self, worker: Worker) -> None:
        """Mark that a worker reached its job's function: from now on limits apply, and a death is blamed on the job."""
        if worker.reached is None:
            worker.reached = self.loop.time()
            self.do(self.scheduler.reached(worker.number))
            self.limits.keep([worker])

    def _never_began(self, worker: Worker) -> None:
        if worker.stopped:
            worker.timers.append(self.loop.call_later(BEGIN_SECONDS, self._never_began, worker))
        elif worker.reached is None and self.scheduler.asks_of(worker.job):
            worker.unable = m.Unable(reason=f"the worker had not started its job {BEGIN_SECONDS:g} s after the fork")
            self._kill(worker)

    def on_forked(self, message: m.Forked) -> None:
        """Record a worker's pid, and tell the callers that their job has started."""
        self.fork_seconds = message.seconds
        self.counters["prepared"] += message.prepared
        worker = self.workers.get(message.worker)
        if worker is None:
            return
        worker.pid = message.pid
        self._begin(worker)

    # ------------------------------------------------------------ kills

    def _worker_silent(self, worker: Worker, error: Exception | None) -> None:
        """Handle the end of a worker's socket. Normally the process has ended, and the zygote reports that."""
        if error is not None:
            log.warning("worker %s: %s", worker.pid, error)
            if isinstance(error, ProtocolError):
                worker.broken = str(error)
            else:  # not the worker's fault: the server has no memory for what it sent
                worker.unable = m.Unable.of("the server cannot read from the worker", error)
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
        if worker.number in self.workers:
            self.do(self.scheduler.refuse(worker.number, reason))
            if worker.pid is None:
                self.on_exited(m.Exited(worker=worker.number, failure=reason))

    def on_exceeded(self, worker: Worker, exceeded: Exceeded) -> None:
        """Kill a worker over its limit. When it has ended, its job is retried or fails."""
        if worker.exceeded is not None or not self.scheduler.asks_of(worker.job):
            return
        worker.exceeded = exceeded
        label, text = worker.work.spec.label, results.describe(exceeded)
        log.warning("job %r in worker %s: %s (phase %r)", label, worker.pid, text, exceeded.phase)
        self._kill(worker)
        # The callers must not wait for a process that the kernel does not end (a disk hangs, say).
        worker.timers.append(self.loop.call_later(GRACE_SECONDS, self._give_up, worker, exceeded))

    def on_suspended(self, worker: Worker) -> None:
        """Kill a worker that something keeps suspended. Its job is retried, or fails with this reason."""
        worker.broken = f"it was suspended for more than {self._patience:g} s (SIGSTOP, a debugger)"
        log.warning("job %r in worker %s: %s", worker.work.spec.label, worker.pid, worker.broken)
        self._kill(worker)

    def _give_up(self, worker: Worker, exceeded: Exceeded) -> None:
        if not self.limits.allowed_since(worker):
            self.do(self.scheduler.given_up(worker.number, exceeded))
            self._await_farm(worker)

    # ------------------------------------------------------------ ends

    def on_exited(self, message: m.Exited) -> None:
        """Record a worker's exit, and handle it after its last messages have been read."""
        worker = self.workers.get(message.worker)
        if worker is None:
            return
        worker.exited = message
        if worker.connection is None or worker.connection.closed:
            self._worker_gone(worker)
        else:
            # Its last messages may still be in the socket: wait for the socket's end.
            worker.timers.append(self.loop.call_later(GRACE_SECONDS, self._worker_gone, worker))

    def _worker_gone(self, worker: Worker) -> None:
        if worker.number not in self.workers:
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
                results.why_unable(worker.exited, worker)[0],
            )
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** self.scheduler.missed(worker.job))
            worker.timers.append(self.loop.call_later(pause, self._worker_gone, worker))
            return
        if wanted and self.limits.allowed_since(worker):
            self.do(self.scheduler.failed(worker.number))
        if wanted and worker.reached is not None:
            self.counters["deaths"] += 1
            self._logs.keep(worker.log_path)
            self._worker_event(worker, "ended", "its worker died")
        # Forget the worker only after the scheduler's decision, because the message to the caller includes its facts.
        self.do(self.scheduler.exited(worker.number, worker.exceeded or worker.exited))
        self._forget(worker)

    def zygote_gone(self, reason: str) -> None:
        """Handle the zygote's death: its workers died with it, and the processes that they started are killed."""
        for worker in self.workers.values():
            if worker.pid is not None:
                processes.kill_group(worker.pid)
        processes.reap_strays(self.farms.pids, seconds=2.0)
        for worker in list(self.workers.values()):
            if worker.connection is not None:
                worker.connection.drain()
        for worker in self.workers.values():
            if worker.pid is not None and self.scheduler.asks_of(worker.job):
                self._logs.keep(worker.log_path)
        exited = m.Exited(worker=0, signal=int(signal.SIGKILL), failure=f"{reason}, and its workers with it")
        self.do(self.scheduler.zygote_lost(exited, reason))
        self.forget_all()

    def forget_all(self) -> None:
        """Forget all workers, which have ended, and stop checking memory."""
        self.limits.end()
        for worker in list(self.workers.values()):
            self._forget(worker)

    def _forget(self, worker: Worker) -> None:
        self._await_farm(worker)
        self.workers.pop(worker.number, None)
        self.callers.forget(worker)
        worker.cancel_timers()
        worker.cancel_limit()
        if worker.connection is not None:
            worker.connection.close()
        self._logs.discard(worker.log_path)
        # A killed worker could not remove it, and neither could its compilers.
        shutil.rmtree(worker.scratch, ignore_errors=True)

    def _await_farm(self, worker: Worker) -> None:
        """Remember the last worker of a job that waits for the farm only: the job's error names it."""
        if self.scheduler.awaits_farm(worker.job):
            for work in self.asking(worker.job):
                log.info("job %r has failed here, and waits for the farm", work.spec.label)
                work.failed = worker
