"""Suspends jobs while clients measure: no job starts, running workers are stopped, the zygote makes no idle calls.

    client ── Pause ──▶ server ── Stop, Rest ──▶ zygote
    client ◀─ Paused ── server ◀── Resting ──────┘        the client measures, and closes the connection
                        server ── GoOn, Rest ──▶ zygote

A pause ends when it reaches its time limit, or with its client's connection, so that a dead client leaves nothing
suspended. The time does not count towards the timeouts of jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from dataclasses import dataclass

from fxpool.pool.server.dispatcher import Dispatcher, ToZygote
from fxpool.pool.server.outcomes import Client
from fxpool.pool.wire import messages as m

__all__ = ["Pauses"]

# Seconds: the longest pause, even if a client asks for more.
_LONGEST = 600.0

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Pause:
    client: Client
    timer: asyncio.TimerHandle
    told: bool = False


class Pauses:
    """The current pauses of all clients."""

    def __init__(self, dispatcher: Dispatcher, to_zygote: ToZygote) -> None:
        self._dispatcher, self._to_zygote = dispatcher, to_zygote
        self._loop = asyncio.get_running_loop()
        self._pauses: dict[int, _Pause] = {}

    def __bool__(self) -> bool:
        return bool(self._pauses)

    def begin(self, client: Client, seconds: float, zygote_is_there: bool) -> None:
        """Suspend all jobs for a client, and tell it when that is done."""
        known = self._pauses.pop(client.number, None)
        if known is not None:
            known.timer.cancel()
        timer = self._loop.call_later(min(max(seconds, 0.0), _LONGEST), self._over, client)
        pause = self._pauses[client.number] = _Pause(client, timer)
        self._dispatcher.stand_still({_group(one.client.pid) for one in self._pauses.values()})
        if zygote_is_there:
            self._to_zygote(m.Rest(on=True), None)
        else:
            self._tell(pause)

    def resting(self) -> None:
        """Tell the clients that all is suspended: the zygote has carried out all earlier orders."""
        for pause in self._pauses.values():
            self._tell(pause)

    def zygote_is_new(self) -> None:
        """Suspend the idle calls of a new zygote too."""
        if self._pauses:
            self._to_zygote(m.Rest(on=True), None)

    def end(self, client: Client) -> None:
        """End a client's pause. No-op without a pause."""
        pause = self._pauses.pop(client.number, None)
        if pause is None:
            return
        pause.timer.cancel()
        if not self._pauses:
            self._to_zygote(m.Rest(on=False), None)
            self._dispatcher.go_on()

    def _tell(self, pause: _Pause) -> None:
        if not pause.told:
            pause.told = True
            pause.client.connection.send(m.Paused(workers=self._dispatcher.stopped))

    def _over(self, client: Client) -> None:
        log.warning("resuming jobs, although process %d is still measuring", client.pid)
        client.connection.send(m.GoneOn())
        self.end(client)


def _group(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.getpgid(pid)
    return pid
