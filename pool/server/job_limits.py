"""Limits of running jobs: their time and memory, the host's memory, and suspension from outside.

If a job has several callers, the largest of their limits applies. A caller that joins may raise it, and a caller that
leaves may lower it. A job over its limit ends with its worker, and the error names the limit.

While the host's memory use is above the high watermark, no jobs start. If it stays there, jobs run one at a time, so
that no caller waits forever. A worker that something suspends (SIGSTOP, a debugger) is killed: its job would never end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from fxpool.pool.host import memory, processes
from fxpool.pool.server.decisions import Action
from fxpool.pool.server.results import Exceeded, Work, Worker
from fxpool.pool.server.scheduler import Scheduler
from fxpool.pool.wire.config import PoolConfig
from fxpool.pool.wire.job_spec import Limit

__all__ = ["JobLimits", "Jobs"]

# Seconds between two checks, in which a process can take some hundred megabytes.
_LOOK_SECONDS = 0.25
# Seconds above the watermark during which no job starts; after that, one job at a time.
_PATIENCE_SECONDS = 10.0
# Seconds: an upper limit for timeouts, within the range of the event loop's clock.
_LONGEST = 1e9
# The longest time between two looks for suspended workers.
_STOPS_SECONDS = 2.0

log = logging.getLogger(__name__)


class Jobs(Protocol):
    """The running jobs. Implemented by the dispatcher."""

    scheduler: Scheduler

    @property
    def workers(self) -> Mapping[int, Worker]: ...
    def asking(self, job: int) -> list[Work]:
        """Return a job's callers."""

    def do(self, actions: list[Action]) -> None: ...
    def on_exceeded(self, worker: Worker, exceeded: Exceeded) -> None:
        """Handle that a worker is over its limit."""

    def on_suspended(self, worker: Worker) -> None:
        """Handle that a worker is suspended for more than `PoolConfig.patience` seconds."""

    def on_memory(self, job: int, size: int) -> None:
        """Take an upper bound on the bytes of a job."""


class JobLimits:
    """The limits that apply, a timer for each job's timeout, and one that checks jobs and host while there are any."""

    def __init__(self, config: PoolConfig, jobs: Jobs) -> None:
        self._jobs, self._patience = jobs, config.patience
        self._host = memory.Host.look()
        size, rule = memory.default_limit(self._host)
        if config.job_memory is not None:
            size, rule = config.job_memory, "configured"
        time_rule = "the default" if config.job_timeout == PoolConfig().job_timeout else "configured"
        self._rules = {"job_seconds": time_rule, "job_bytes": rule, "host_mark": self._host.total()[1]}
        self._default: dict[Limit, float | None] = {"timeout": config.job_timeout, "memory": size}
        self._host_mark = config.memory_high_watermark
        self.pressed = False
        self.rests = False  # jobs are suspended, and checks would disturb the measurement
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._looked = float("-inf")
        self._pressed_since = 0.0
        self._looked_for_stops = float("-inf")
        self._stopped_since: dict[int, float] = {}  # by the worker's number, on the loop's clock

    def facts(self) -> dict[str, Any]:
        """Return the limits as plain data, each with the rule that determined it."""
        used, of = self._host.used()
        return {
            "job_seconds": self._default["timeout"],
            "job_bytes": self._default["memory"],
            "host_mark": self._host_mark,
            "host_bytes": self._host.total()[0],
            "host_used": round(used, 4),
            "host_used_of": of,
            "rules": dict(self._rules),
            "pressed": self.pressed,
        }

    def of(self, worker: Worker, limit: Limit) -> float | None:
        """Return the largest limit of a job's callers; None if one sets none, without callers, and for sub-jobs."""
        if worker.work.worker is not None:
            return None
        limits: list[float | None]
        limits = [getattr(work.spec, limit) or self._default[limit] for work in self._jobs.asking(worker.job)]
        return None if None in limits else max(filter(None, limits), default=None)

    def allowed_since(self, worker: Worker) -> bool:
        """Return whether a caller that joined too late allows more than the limit at which the worker was killed."""
        exceeded = worker.exceeded
        if exceeded is None or not self._jobs.asking(worker.job):
            return False
        limit = self.of(worker, exceeded.kind)
        return limit is None or limit > exceeded.limit

    # ------------------------------------------------------------ time

    def keep(self, workers: Iterable[Worker]) -> None:
        """Start or restart the timeout timers of `workers`, whose jobs started or whose callers changed."""
        for worker in workers:
            if worker.limit_timer is not None:
                worker.limit_timer.cancel()
                worker.limit_timer = None
            if worker.reached is None or worker.exceeded is not None or worker.stopped:
                continue
            limit = self.of(worker, "timeout")
            if limit is not None:
                at = worker.reached + min(limit, _LONGEST)
                worker.limit_timer = self._loop.call_at(at, self._out_of_time, worker, limit)

    def _out_of_time(self, worker: Worker, limit: float) -> None:
        self._jobs.on_exceeded(worker, Exceeded("timeout", limit, limit, worker.phase, f"{limit:g} s"))

    # ------------------------------------------------------------ memory, and suspended workers

    def before_a_job(self) -> None:
        """Check the host, unless the last check is less than `_LOOK_SECONDS` ago."""
        if self._loop.time() - self._looked >= _LOOK_SECONDS:
            self._look_at_host()

    def go_on(self) -> None:
        """Start the timer if there are workers or queued jobs."""
        if self._timer is None and (self._jobs.workers or self._jobs.scheduler.queued):
            self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)

    def end(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        self._look_for_stops()
        if not self.rests:
            self._look_at_jobs()
            self._look_at_host()
        self.go_on()

    def _look_at_jobs(self) -> None:
        for worker, pids in self._trees():
            limit = self.of(worker, "memory")
            everybody = [pid for top in pids for pid in memory.tree(top)]
            # An upper bound, as it counts shared pages in full, and much cheaper.
            most = memory.at_most(everybody)
            self._jobs.on_memory(worker.job, most)
            if limit is None or most <= limit or (used := memory.proportional(everybody)) <= limit:
                continue
            text = f"{limit / 2**20:.0f} MB of memory"
            self._jobs.on_exceeded(worker, Exceeded("memory", limit, used, worker.phase, text))

    def _trees(self) -> list[tuple[Worker, list[int]]]:
        """Return the workers of clients' jobs, each with its pid and the pids of its sub-jobs' workers."""
        workers_by_top: dict[int, tuple[Worker, list[int]]] = {}
        for worker in self._jobs.workers.values():
            top = worker.top
            bounded = top.reached is not None and top.exceeded is None and self._jobs.asking(top.job)
            if worker.pid is not None and bounded:
                workers_by_top.setdefault(top.number, (top, []))[1].append(worker.pid)
        return list(workers_by_top.values())

    def _look_at_host(self) -> None:
        now = self._looked = self._loop.time()
        used, of = self._host.used()
        pressed = used > self._host_mark
        if pressed != self.pressed:
            then = "not starting jobs" if pressed else "starting jobs again"
            log.warning("%.0f %% of %s are in use: %s", 100 * used, of, then)
            self._pressed_since = now
        self.pressed = pressed
        patient = now - self._pressed_since < _PATIENCE_SECONDS
        self._jobs.do(self._jobs.scheduler.admit(None if not pressed else 0 if patient else 1))

    def _look_for_stops(self) -> None:
        now, before = self._loop.time(), self._stopped_since
        if now - self._looked_for_stops < min(_STOPS_SECONDS, self._patience / 4):
            return
        self._looked_for_stops = now
        workers = self._jobs.workers
        self._stopped_since = {
            number: before.get(number, now)
            for number, worker in workers.items()
            # The server itself suspends workers while a client measures.
            if worker.pid and worker.exited is None and not worker.stopped and processes.is_stopped(worker.pid)
        }
        for number, since in self._stopped_since.items():
            if now - since > self._patience and number in workers:
                self._jobs.on_suspended(workers[number])
