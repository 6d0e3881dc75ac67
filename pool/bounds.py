"""What a job may take while it runs: the most that anybody who waits for it allows.

A job that several asked for ends at none of their limits but the largest; who joins it late may raise that, who leaves
may lower it. A job over its limit is ended with its worker, and that is said with the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from fxpool.pool.outcomes import Exceeded, Work, Worker
from fxpool.pool.watch import Limits

__all__ = ["Bounds"]


class Bounds:
    """The limits of running jobs, and the timers of their time."""

    def __init__(
        self,
        limits: Limits,
        workers: Mapping[int, Worker],
        asking: Callable[[int], list[Work]],
        over: Callable[[Worker, Exceeded], None],
    ) -> None:
        """`asking` gives who waits for a job; `over` is told of each of `workers` whose job has had its time."""
        self._limits, self._workers, self._asking, self._over = limits, workers, asking, over
        self._loop = asyncio.get_running_loop()

    def seconds(self, worker: Worker) -> float | None:
        """Of one attempt; None where somebody sets no limit. A part of a job has none of its own."""
        asking = self._asking(worker.job)
        asked = [work.ask.timeout or self._limits.job_seconds for work in asking]
        if worker.work.worker is not None or not asked:
            return None
        return None if None in asked else max(filter(None, asked))

    def memory(self, worker: Worker) -> int:
        """Bytes of all its processes."""
        asked = [work.ask.memory or self._limits.job_bytes for work in self._asking(worker.job)]
        return max(asked, default=self._limits.job_bytes)

    def keep(self, workers: Iterable[Worker]) -> None:
        """See to the time of jobs that have begun, or of which other people wait now."""
        for worker in workers:
            if worker.limit_timer is not None:
                worker.limit_timer.cancel()
                worker.limit_timer = None
            limit = self.seconds(worker)
            if worker.reached is not None and limit is not None and worker.exceeded is None:
                worker.limit_timer = self._loop.call_at(worker.reached + limit, self._out_of_time, worker, limit)

    def trees(self) -> list[tuple[Worker, list[int]]]:
        """Workers that run what a client asked for, with the pids of them and of their sub-jobs' workers."""
        found: dict[int, tuple[Worker, list[int]]] = {}
        for worker in self._workers.values():
            top = worker.top
            bounded = top.reached is not None and top.exceeded is None and self._asking(top.job)
            if worker.pid is not None and bounded:
                found.setdefault(top.number, (top, []))[1].append(worker.pid)
        return list(found.values())

    def allowed_since(self, worker: Worker) -> bool:
        """Whether somebody who came when it was too late allows more than what the worker was ended for."""
        how = worker.exceeded
        if how is None or not self._asking(worker.job):
            return False
        limit = self.seconds(worker) if how.kind == "timeout" else self.memory(worker)
        return limit is None or limit > how.limit

    def _out_of_time(self, worker: Worker, limit: float) -> None:
        self._over(worker, Exceeded("timeout", limit, limit, worker.phase))
