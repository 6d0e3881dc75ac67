"""Time and memory limits of running jobs.

If a job has several callers, the largest of their limits applies. A caller that joins may raise it, and a caller that
leaves may lower it. A job over its limit ends with its worker, and the error names the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from fxpool.pool.server.outcomes import Exceeded, Work, Worker
from fxpool.pool.server.watch import Limits

__all__ = ["Bounds"]


class Bounds:
    """The limits of running jobs, and the timers for their timeouts."""

    def __init__(
        self,
        limits: Limits,
        workers: Mapping[int, Worker],
        asking: Callable[[int], list[Work]],
        over: Callable[[Worker, Exceeded], None],
    ) -> None:
        """`asking` returns a job's callers. `over` is called with each of `workers` whose job exceeds its timeout."""
        self._limits, self._workers, self._asking, self._over = limits, workers, asking, over
        self._loop = asyncio.get_running_loop()

    def seconds(self, worker: Worker) -> float | None:
        """Return the seconds that an attempt may take; None for sub-jobs, or if a caller sets no limit."""
        asking = self._asking(worker.job)
        asked = [work.spec.timeout or self._limits.job_seconds for work in asking]
        if worker.work.worker is not None or not asked:
            return None
        return None if None in asked else max(filter(None, asked))

    def memory(self, worker: Worker) -> int:
        """Return the bytes that a job's processes may take together."""
        asked = [work.spec.memory or self._limits.job_bytes for work in self._asking(worker.job)]
        return max(asked, default=self._limits.job_bytes)

    def keep(self, workers: Iterable[Worker]) -> None:
        """Start or restart the timeout timers of `workers`, whose jobs started or whose callers changed."""
        for worker in workers:
            if worker.limit_timer is not None:
                worker.limit_timer.cancel()
                worker.limit_timer = None
            limit = self.seconds(worker)
            if worker.reached is None or worker.exceeded is not None or worker.stopped:
                continue
            if limit is not None:
                worker.limit_timer = self._loop.call_at(worker.reached + limit, self._out_of_time, worker, limit)

    def trees(self) -> list[tuple[Worker, list[int]]]:
        """Return the workers of clients' jobs, each with its pid and the pids of its sub-jobs' workers."""
        workers_by_top: dict[int, tuple[Worker, list[int]]] = {}
        for worker in self._workers.values():
            top = worker.top
            bounded = top.reached is not None and top.exceeded is None and self._asking(top.job)
            if worker.pid is not None and bounded:
                workers_by_top.setdefault(top.number, (top, []))[1].append(worker.pid)
        return list(workers_by_top.values())

    def allowed_since(self, worker: Worker) -> bool:
        """Return whether a caller that joined too late allows more than the limit at which the worker was killed."""
        how = worker.exceeded
        if how is None or not self._asking(worker.job):
            return False
        limit = self.seconds(worker) if how.kind == "timeout" else self.memory(worker)
        return limit is None or limit > how.limit

    def _out_of_time(self, worker: Worker, limit: float) -> None:
        self._over(worker, Exceeded("timeout", limit, limit, worker.phase))
