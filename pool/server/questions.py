"""What workers ask the callers of their jobs: who is asked, and whose answer it is.

worker ── Ask ──▶ server ── Asked ──▶ a caller that answers questions
worker ◀─ Answered ── server ◀── Answer ─┘   no answer, or the caller is gone: the next one, or none
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from fxpool.pool.server.outcomes import Client, Work, Worker
from fxpool.pool.wire import messages as m

__all__ = ["Questions"]


@dataclass
class _Question:
    """A worker's question on its way; `asked` are the callers that had their turn, the last of them has it."""

    worker: Worker
    number: int
    payload: memoryview
    asked: list[Work] = field(default_factory=list)


class Questions:
    """Questions that wait for an answer. `callers` returns the clients' jobs that a worker works for."""

    def __init__(
        self,
        callers: Callable[[Worker], Iterable[Work]],
        send: Callable[[Worker, msgspec.Struct, memoryview], None],
    ) -> None:
        self._callers, self._send = callers, send
        self._waiting: dict[int, _Question] = {}
        self._numbers = itertools.count(1)

    def ask(self, worker: Worker, message: m.Ask, payload: memoryview) -> None:
        """Hand a worker's question to a caller of its job, or tell it that there is none who answers."""
        self._next(_Question(worker, message.number, payload))

    def answer(self, client: Client, message: m.Answer, payload: memoryview) -> None:
        """Hand a client's answer to the worker that asked. No-op if nobody waits for it."""
        question = self._waiting.get(message.number)
        if question is None or question.asked[-1].client is not client:
            return
        del self._waiting[message.number]
        if message.ok:
            self._send(question.worker, m.Answered(number=question.number, ok=True), payload)
        else:
            self._next(question)

    def withdrawn(self, work: Work) -> None:
        """Ask others what was asked of a caller that no longer waits for its job."""
        for number, question in list(self._waiting.items()):
            if question.asked[-1] is work:
                del self._waiting[number]
                self._next(question)

    def left(self, client: Client) -> None:
        """Ask others what was asked of a client that is gone."""
        for number, question in list(self._waiting.items()):
            if question.asked[-1].client is client:
                del self._waiting[number]
                self._next(question)

    def forget(self, worker: Worker) -> None:
        """Drop the questions of a worker that is gone."""
        self._waiting = {number: one for number, one in self._waiting.items() if one.worker is not worker}

    def _next(self, question: _Question) -> None:
        for work in self._callers(question.worker):
            if work.client is None or work.client.connection.closed or not work.ask.answers or work in question.asked:
                continue
            question.asked.append(work)
            number = next(self._numbers)
            self._waiting[number] = question
            work.client.connection.send(m.Asked(job=work.ask.job, number=number), question.payload)
            return
        self._send(question.worker, m.Answered(number=question.number, ok=False), memoryview(b""))
