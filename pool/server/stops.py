"""Notices workers that something suspends (SIGSTOP, a debugger), whose jobs would never end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from fxpool.pool.host import processes
from fxpool.pool.server.outcomes import Worker

__all__ = ["Stops"]

_LOOK_SECONDS = 2.0


class Stops:
    """Looks at `workers` on a timer, which runs while there are any.

    `over` is called with each that is suspended for more than `patience` seconds.
    """

    def __init__(self, workers: Mapping[int, Worker], patience: float, over: Callable[[Worker], None]) -> None:
        self._workers, self._patience, self._over = workers, patience, over
        self._pause = min(_LOOK_SECONDS, patience / 4)
        self._loop = asyncio.get_running_loop()
        self._since: dict[int, float] = {}  # by the worker's number, on the loop's clock
        self._timer: asyncio.TimerHandle | None = None

    def go_on(self) -> None:
        """Start the timer if there are workers."""
        if self._timer is None and self._workers:
            self._timer = self._loop.call_later(self._pause, self._look)

    def _look(self) -> None:
        self._timer = None
        now, before = self._loop.time(), self._since
        self._since = {
            number: before.get(number, now)
            for number, worker in self._workers.items()
            # The server itself suspends workers while a client measures.
            if worker.pid and worker.exited is None and not worker.stopped and processes.is_stopped(worker.pid)
        }
        for number, since in self._since.items():
            if now - since > self._patience:
                self._over(self._workers[number])
        self.go_on()
