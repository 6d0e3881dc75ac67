"""Checks the memory of running jobs, and that of the host before a job starts.

A job over its memory limit ends like a job over its timeout. While the host's memory use is above the high watermark,
no jobs start. If it stays there, jobs run one at a time, so that no caller waits forever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fxpool.pool.host import memory
from fxpool.pool.server.decisions import Action
from fxpool.pool.server.outcomes import Exceeded, Worker
from fxpool.pool.server.scheduler import Scheduler
from fxpool.pool.wire.config import PoolConfig

__all__ = ["Limits", "Watch"]

# Seconds between two checks, in which a process can take some hundred megabytes.
_LOOK_SECONDS = 0.25
# Seconds above the watermark during which no job starts; after that, one job at a time.
_PATIENCE_SECONDS = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """Limits of a job (seconds; bytes of all its processes), and the host's high watermark (0.0 to 1.0)."""

    job_seconds: float | None
    job_bytes: int
    host_mark: float
    rules: dict[str, str]
    host: memory.Host

    @staticmethod
    def of(job_seconds: float | None, job_bytes: int | None, host_mark: float) -> Limits:
        """Return the configured limits, completed by the host's defaults."""
        host = memory.Host.look()
        limit, rule = memory.default_limit(host)
        seconds = "the default" if job_seconds == PoolConfig.job_timeout else "configured"
        rules = {"job_seconds": seconds, "job_bytes": rule, "host_mark": host.total()[1]}
        if job_bytes is not None:
            limit, rules["job_bytes"] = job_bytes, "configured"
        return Limits(job_seconds, limit, host_mark, rules, host)

    def facts(self) -> dict[str, Any]:
        """Return the limits as plain data, each with the rule that determined it."""
        used, of = self.host.used()
        return {
            "job_seconds": self.job_seconds,
            "job_bytes": self.job_bytes,
            "host_mark": self.host_mark,
            "host_bytes": self.host.total()[0],
            "host_used": round(used, 4),
            "host_used_of": of,
            "rules": dict(self.rules),
        }


class Watch:
    """Checks jobs and host on one timer, which runs while there are workers or queued jobs."""

    def __init__(
        self,
        limits: Limits,
        scheduler: Scheduler,
        do: Callable[[list[Action]], None],
        jobs: Callable[[], Iterable[tuple[Worker, list[int]]]],
        limit_of: Callable[[Worker], int],
        over: Callable[[Worker, Exceeded], None],
        took: Callable[[int, int], None],
    ) -> None:
        """`jobs` returns the workers of clients' jobs, each with its pid and those of its sub-jobs' workers. `limit_of`
        returns a worker's limit in bytes, and `over` is called for each worker above it. `took` is called with the
        number of each job and an upper bound on its bytes."""
        self.limits = limits
        self.pressed = False
        self.rests = False  # jobs are suspended, and checks would disturb the measurement
        self._scheduler, self._do, self._jobs, self._over = scheduler, do, jobs, over
        self._limit_of, self._took = limit_of, took
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._looked = float("-inf")
        self._pressed_since = 0.0

    def before_a_job(self) -> None:
        """Check the host, unless the last check is less than `_LOOK_SECONDS` ago."""
        if self._loop.time() - self._looked >= _LOOK_SECONDS:
            self._look_at_host()

    def go_on(self) -> None:
        """Start the timer if there are workers or queued jobs."""
        if self._timer is None and (self._scheduler.running or self._scheduler.queued):
            self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self.rests:
            self._look_at_jobs()
            self._look_at_host()
        self.go_on()

    def _look_at_jobs(self) -> None:
        for worker, pids in self._jobs():
            limit = self._limit_of(worker)
            everybody = [one for pid in pids for one in memory.tree(pid)]
            # An upper bound, as it counts shared pages in full, and much cheaper.
            most = memory.at_most(everybody)
            self._took(worker.job, most)
            if most <= limit:
                continue
            used = memory.proportional(everybody)
            if used > limit:
                self._over(worker, Exceeded("memory", limit, used, worker.phase))

    def _look_at_host(self) -> None:
        now = self._looked = self._loop.time()
        used, of = self.limits.host.used()
        pressed = used > self.limits.host_mark
        if pressed != self.pressed:
            log.warning(
                "%.0f %% of %s are in use: %s",
                100 * used,
                of,
                "not starting jobs" if pressed else "starting jobs again",
            )
            self._pressed_since = now
        self.pressed = pressed
        patient = now - self._pressed_since < _PATIENCE_SECONDS
        admitted = None if not pressed else 0 if patient else 1
        self._do(self._scheduler.admit(admitted))

    def end(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
