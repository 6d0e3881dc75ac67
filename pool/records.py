"""Passing on what workers log, to clients that read it.

What a client leaves unread waits in the server's memory: beyond a cap records are dropped, and it is told how many.
"""

from __future__ import annotations

import logging

from fxpool.pool import messages as m
from fxpool.pool.outcomes import Work

__all__ = ["Records"]

log = logging.getLogger(__name__)


class Records:
    """Counts what it drops as `dropped_records`."""

    def __init__(self, counters: dict[str, int]) -> None:
        self._counters = counters

    def tell(self, work: Work, message: m.LogRecord | m.WarningRecord) -> None:
        """Pass a record on to the client that waits for `work`, or drop it."""
        assert work.client is not None
        if work.client.connection.full:
            if not work.dropped:
                log.warning("process %d does not read: what %r logs is dropped", work.client.pid, work.ask.label)
            work.dropped += 1
            self._counters["dropped_records"] += 1
            return
        self.end(work)
        message.job = work.ask.job
        work.client.connection.send(message)

    def end(self, work: Work) -> None:
        """Say what was dropped, as there is room again or nothing else to say of `work`."""
        if work.dropped and work.client is not None:
            text = f"{work.dropped} records and warnings of job {work.ask.label!r} were dropped, as this process did "
            text += "not read what came before them"
            work.dropped = 0
            record = m.LogRecord(
                job=work.ask.job,
                name="fxpool.pool",
                level=logging.WARNING,
                message=text,
                pathname=__file__,
                lineno=0,
                function="",
                process=0,
                thread="",
                created=0.0,
                exc_text=None,
            )
            work.client.connection.send(record)
