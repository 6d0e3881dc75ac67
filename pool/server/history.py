"""A history of jobs for the dashboard: running and recent jobs with their times, workers, callers and results.

It does no I/O, reads no clock, and limits the number of jobs and of phases per job. Times are `time.monotonic()`, the
same clock for all processes of a host. Every change gets a number, and a reader asks for the changes after the last
number it has seen.
"""

from __future__ import annotations

import bisect
from collections import Counter, OrderedDict
from typing import Any

from fxpool.pool.wire import messages as m

__all__ = ["BUCKETS", "CAPACITY", "History"]

#: Number of ended jobs that the history keeps.
CAPACITY = 1000
#: Upper bounds, in seconds, of the histogram's buckets for the times of jobs.
BUCKETS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0)
_PHASES = 50
_ASKERS = 50
_REASON = 300


class _Times:
    """Counts of times by bucket, and their sum."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds

    def facts(self) -> dict[str, Any]:
        return {"bounds": list(BUCKETS), "counts": list(self.counts), "sum": round(self.sum, 3)}


class History:
    """The jobs of a server. A job has the number of its first ask (a caller's request); later asks can join it."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.latest = 0
        self._capacity = capacity
        self._jobs: dict[int, m.JobRecord] = {}
        self._ended: OrderedDict[int, None] = OrderedDict()
        self._job_of: dict[int, int] = {}
        self._open: Counter[int] = Counter()  # the number of a job's asks that are not answered yet
        self._endings: Counter[str] = Counter()
        self._waits, self._runs = _Times(), _Times()

    def submitted(self, ask: int, job: int, label: str, pid: int, at: float, *, part_of: int = 0) -> None:
        """Record an ask of process `pid` for `job`, equal to `ask` for a new job; `part_of` is the parent job."""
        record = self._jobs.get(job)
        if record is None:
            record = self._jobs[job] = m.JobRecord(job=job, change=0, label=label, queued=at, part_of=part_of)
        self._job_of[ask] = job
        self._open[job] += 1
        if pid and pid not in record.askers and len(record.askers) < _ASKERS:
            record.askers.append(pid)
        self._changed(record)

    def begun(self, job: int, worker: int, attempt: int, at: float, reason: str = "") -> None:
        """Record that `job` has a worker. From the second attempt on, `reason` says how the previous worker ended."""
        record = self._jobs.get(job)
        if record is None or record.ended is not None:
            return
        if record.begun is None:
            record.begun = at
            self._waits.add(at - record.queued)
        record.worker, record.attempts = worker, attempt
        if reason:
            record.reason = reason[:_REASON]
            self._phase(record, f"attempt {attempt}", at)
        self._changed(record)

    def ran_on(self, job: int, machine: str, since: float) -> None:
        """Record the farm's machine that has run `job`, and when it began."""
        record = self._jobs.get(job)
        if record is not None and record.ended is None:
            record.machine, record.begun = machine, max(since, record.queued)
            self._changed(record)

    def phase(self, job: int, name: str, at: float) -> None:
        """Record the phase that `job` enters."""
        record = self._jobs.get(job)
        if record is not None and record.ended is None:
            self._phase(record, name, at)
            self._changed(record)

    def took(self, job: int, size: int) -> None:
        """Record an upper bound on the bytes that the processes of `job` take (shared pages in full)."""
        record = self._jobs.get(job)
        if record is not None and size > record.memory:
            # Only a visible difference counts as a change: this is called four times a second.
            if size > 1.05 * record.memory:
                self._changed(record)
            record.memory = size

    def answered(self, ask: int, result: str, at: float, reason: str = "") -> None:
        """Record how an ask ended. Its job has ended when all of its asks have."""
        job = self._job_of.pop(ask, None)
        if job is None:
            return
        record = self._jobs[job]
        self._open[job] -= 1
        if self._open[job]:
            self._changed(record)
            return
        del self._open[job]
        record.ended, record.result = at, result
        record.reason = reason[:_REASON] or record.reason
        self._endings[result] += 1
        if record.begun is not None:
            self._runs.add(at - record.begun)
        self._ended[job] = None
        self._changed(record)
        while len(self._ended) > self._capacity:
            self._jobs.pop(self._ended.popitem(last=False)[0])

    def since(self, change: int) -> list[m.JobRecord]:
        """Return the records that changed after `change`, the latest change last."""
        changed = [record for record in self._jobs.values() if record.change > change]
        return sorted(changed, key=lambda record: record.change)

    def facts(self) -> dict[str, Any]:
        """Return the number of jobs by result, and histograms of their waiting and running times."""
        return {"ended": dict(self._endings), "waited": self._waits.facts(), "ran": self._runs.facts()}

    def _phase(self, record: m.JobRecord, name: str, at: float) -> None:
        if len(record.phases) < _PHASES:
            record.phases.append((name, at))

    def _changed(self, record: m.JobRecord) -> None:
        self.latest += 1
        record.change = self.latest
