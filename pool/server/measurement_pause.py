"""Suspends jobs while clients measure: no job starts, running workers are stopped, the zygote makes no idle calls.

    client ── Pause ──▶ server ── Stop, Suspend ──▶ zygote
    client ◀─ Paused ── server ◀── Suspended ───────┘        the client measures, and closes the connection
                        server ── Continue, Suspend ──▶ zygote

A pause ends when it reaches its time limit, or with its client's connection, so that a dead client leaves nothing
suspended. The time does not count towards the timeouts of jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from dataclasses import dataclass

from fxpool.pool.server.dispatcher import Dispatcher
from fxpool.pool.server.results import Client, Worker
from fxpool.pool.server.workers import ToZygote
from fxpool.pool.wire import messages as m

__all__ = ["Pauses"]

# Seconds: the longest pause, even if a client asks for more.
_LONGEST = 600.0

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Pause:
    client: Client
    timer: asyncio.TimerHandle
    confirmed: bool = False


class Pauses:
    """The current pauses of all clients."""

    def __init__(self, dispatcher: Dispatcher, to_zygote: ToZygote) -> None:
        self._dispatcher, self._to_zygote = dispatcher, to_zygote
        self._loop = asyncio.get_running_loop()
        self._pauses: dict[int, _Pause] = {}
        self._since = 0.0  # when the first of them began

    def __bool__(self) -> bool:
        return bool(self._pauses)

    def begin(self, client: Client, seconds: float, zygote_is_there: bool) -> None:
        """Suspend all jobs for a client, and tell it when that is done."""
        if not self._pauses:
            self._since = self._loop.time()
        earlier = self._pauses.pop(client.number, None)
        if earlier is not None:
            earlier.timer.cancel()
        timer = self._loop.call_later(min(max(seconds, 0.0), _LONGEST), self._over, client)
        pause = self._pauses[client.number] = _Pause(client, timer)
        self._dispatcher.scheduler.hold()
        self._dispatcher.limits.rests = True
        # A worker that was stopped with its Pause on the way here: its own pause would keep it stopped.
        self._go_on([worker for worker in self._stopped() if worker.pid == _group(client.pid)])
        for worker in self._dispatcher.workers.values():
            self._stop(worker)
        if zygote_is_there:
            self._to_zygote(m.Suspend(on=True), None)
        else:
            self._confirm(pause)

    def on_forked(self, number: int) -> None:
        """Suspend a new worker too."""
        if self._pauses and number in self._dispatcher.workers:
            self._stop(self._dispatcher.workers[number])

    def _stop(self, worker: Worker) -> None:
        """Suspend a worker, unless a client that measures runs in it."""
        if worker.pid is None or worker.stopped or worker.exited is not None:
            return
        if worker.pid in {_group(pause.client.pid) for pause in self._pauses.values()}:
            return
        if not self._dispatcher.scheduler.asks_of(worker.job):
            return  # it has answered, and will exit or is parked
        worker.stopped = True
        worker.cancel_limit()
        self._to_zygote(m.Stop(worker=worker.number), None)

    def suspended(self) -> None:
        """Tell the clients that all is suspended: the zygote has carried out all earlier orders."""
        for pause in self._pauses.values():
            self._confirm(pause)

    def zygote_is_new(self) -> None:
        """Suspend the idle calls of a new zygote too."""
        if self._pauses:
            self._to_zygote(m.Suspend(on=True), None)

    def end(self, client: Client) -> None:
        """End a client's pause. No-op without a pause."""
        pause = self._pauses.pop(client.number, None)
        if pause is None:
            return
        pause.timer.cancel()
        if not self._pauses:
            self._to_zygote(m.Suspend(on=False), None)
            self._resume()

    def _resume(self) -> None:
        self._dispatcher.limits.rests = False
        self._go_on(self._stopped())
        self._dispatcher.do(self._dispatcher.scheduler.go_on())

    def _stopped(self) -> list[Worker]:
        return [worker for worker in self._dispatcher.workers.values() if worker.stopped]

    def _go_on(self, stopped: list[Worker]) -> None:
        for worker in stopped:
            worker.stopped = False
            if worker.exited is None:
                self._to_zygote(m.Continue(worker=worker.number), None)
            if worker.reached is not None:
                worker.reached += self._loop.time() - max(self._since, worker.reached)
        self._dispatcher.limits.keep(stopped)

    def _confirm(self, pause: _Pause) -> None:
        if not pause.confirmed:
            pause.confirmed = True
            pause.client.connection.send(m.Paused(workers=len(self._stopped())))

    def _over(self, client: Client) -> None:
        log.warning("resuming jobs, although process %d is still measuring", client.pid)
        client.connection.send(m.Resumed())
        self.end(client)


def _group(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.getpgid(pid)
    return pid
