"""Callbacks: passes questions of workers to the callers of their jobs, and the answers back.

worker ── Ask ──▶ server ── Asked ──▶ a caller that answers questions
worker ◀─ Answered ── server ◀── Answer ─┘   without an answer, the next caller is asked

If no caller can answer, the worker receives `Answered` without `ok`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fxpool.pool.server.outcomes import Client, Work, Worker
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.protocol import Message

__all__ = ["Questions"]


@dataclass
class _Question:
    """A worker's pending question. `asked` are the callers that were asked; the last of them has yet to answer."""

    worker: Worker
    number: int
    payload: memoryview
    asked: list[Work] = field(default_factory=list)


class Questions:
    """Pending questions. `callers` returns the clients' jobs that a worker runs or helps to run."""

    def __init__(
        self,
        callers: Callable[[Worker], Iterable[Work]],
        send: Callable[[Worker, Message, memoryview], None],
    ) -> None:
        self._callers, self._send = callers, send
        self._waiting: dict[int, _Question] = {}
        self._numbers = itertools.count(1)

    def ask(self, worker: Worker, message: m.Ask, payload: memoryview) -> None:
        """Pass a worker's question to a caller of its job, or tell the worker that no caller answers."""
        self._next(_Question(worker, message.number, payload))

    def answer(self, client: Client, message: m.Answer, payload: memoryview) -> None:
        """Pass a client's answer to the worker that asked. No-op if no worker waits for it."""
        question = self._waiting.get(message.number)
        if question is None or question.asked[-1].client is not client:
            return
        del self._waiting[message.number]
        if message.ok:
            self._send(question.worker, m.Answered(number=question.number, ok=True), payload)
        else:
            self._next(question)

    def withdrawn(self, work: Work) -> None:
        """Ask the next caller, if a caller with a pending question no longer waits for its job."""
        for number, question in list(self._waiting.items()):
            if question.asked[-1] is work:
                del self._waiting[number]
                self._next(question)

    def left(self, client: Client) -> None:
        """Ask the next caller, if a client with pending questions has disconnected."""
        for number, question in list(self._waiting.items()):
            if question.asked[-1].client is client:
                del self._waiting[number]
                self._next(question)

    def forget(self, worker: Worker) -> None:
        """Drop the questions of a worker that has ended."""
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
