"""Messages to the callers of jobs: log records, progress, and callbacks.

worker ── Ask ──▶ server ── Question ──▶ a caller that answers questions
worker ◀─ Answered ── server ◀── Answer ─┘   without an answer, the next caller is asked

If no caller can answer, the worker receives `Answered` without `ok`.

Log records that a client does not read would fill the server's memory. Above a cap they are dropped, and the client is
told how many.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fxpool.pool.server.results import Client, Work, Worker
from fxpool.pool.wire import messages as m

__all__ = ["Callers"]

log = logging.getLogger(__name__)


@dataclass
class _Question:
    """A worker's pending question. `callers` have been asked; the last of them has yet to answer."""

    worker: Worker
    number: int
    payload: memoryview
    callers: list[Work] = field(default_factory=list)


class Callers:
    """The callers of all jobs. `of` returns the clients' jobs that a job belongs to."""

    def __init__(self, of: Callable[[int], list[Work]], counters: dict[str, int]) -> None:
        """Dropped records are counted in `counters`."""
        self._of, self._counters = of, counters
        self._watched: set[int] = set()
        self._questions: dict[int, _Question] = {}
        self._numbers = itertools.count(1)

    # ------------------------------------------------------------ log records and warnings

    def record(self, job: int, message: m.LogRecord | m.WarningRecord) -> None:
        """Send a record of a worker to its callers, or drop it for a client that does not read."""
        for work in self._of(job):
            assert work.client is not None
            if work.client.connection.full:
                if not work.dropped:
                    log.warning(
                        "dropping log records of %r: client %d is not reading its socket",
                        work.spec.label,
                        work.client.pid,
                    )
                work.dropped += 1
                self._counters["dropped_records"] += 1
                continue
            self._report_dropped(work)
            message.job = work.ask.job
            work.client.connection.send(message)

    def _report_dropped(self, work: Work) -> None:
        """Report how many records were dropped, when the client reads again, and when the job ends."""
        if work.dropped and work.client is not None:
            text = (
                f"{work.dropped} records and warnings of job {work.spec.label!r} were dropped because this process "
                "did not read earlier ones"
            )
            work.dropped = 0
            record = m.LogRecord("fxpool.pool", logging.WARNING, text, job=work.ask.job, pathname=__file__)
            work.client.connection.send(record)

    # ------------------------------------------------------------ progress

    @property
    def watch(self) -> bool:
        """True if at least one job is watched: only then are events worth their time."""
        return bool(self._watched)

    def add(self, work: Work) -> None:
        """Report events of a client's job from now on, if the client watches it."""
        if work.ask.watched:
            self._watched.add(work.key)

    def event(
        self,
        callers: Iterable[Work],
        work: Work,
        kind: m.EventKind,
        at: float,
        worker: int | None = None,
        name: str = "",
    ) -> None:
        """Report to the watched jobs of `callers` that `work` has reached a stage at `at` (loop time)."""
        part = 0 if work.worker is None else work.key
        for above in callers:
            if above.client is not None and above.key in self._watched:
                event = m.JobEvent(above.ask.job, part, kind, work.spec.label, at, worker, name)
                above.client.connection.send(event)

    # ------------------------------------------------------------ callbacks

    def ask(self, worker: Worker, message: m.Ask, payload: memoryview) -> None:
        """Pass a worker's question to a caller of its job, or tell the worker that no caller answers."""
        self._ask_next(_Question(worker, message.number, payload))

    def answer(self, client: Client, message: m.Answer, payload: memoryview) -> None:
        """Pass a client's answer to the worker that asked. No-op if no worker waits for it."""
        question = self._questions.get(message.number)
        if question is None or question.callers[-1].client is not client:
            return
        del self._questions[message.number]
        if message.ok:
            question.worker.send(m.Answered(number=question.number, ok=True), payload)
        else:
            self._ask_next(question)

    def ended(self, work: Work) -> None:
        """Forget a caller whose job has ended, or that no longer waits for it."""
        self._watched.discard(work.key)
        self._report_dropped(work)
        self._pass_on(lambda caller: caller is work)

    def left(self, client: Client) -> None:
        """Pass on the questions of a client that has disconnected."""
        self._pass_on(lambda caller: caller.client is client)

    def forget(self, worker: Worker) -> None:
        """Drop the questions of a worker that has ended."""
        self._questions = {number: asked for number, asked in self._questions.items() if asked.worker is not worker}

    def _pass_on(self, gone: Callable[[Work], bool]) -> None:
        for number, question in list(self._questions.items()):
            if gone(question.callers[-1]):
                del self._questions[number]
                self._ask_next(question)

    def _ask_next(self, question: _Question) -> None:
        for work in self._of(question.worker.job):
            client = work.client
            if client is None or client.connection.closed or not work.ask.answers or work in question.callers:
                continue
            question.callers.append(work)
            number = next(self._numbers)
            self._questions[number] = question
            client.connection.send(m.Question(job=work.ask.job, number=number), question.payload)
            return
        question.worker.send(m.Answered(number=question.number, ok=False))
