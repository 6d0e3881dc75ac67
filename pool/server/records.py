"""Forwards workers' log records and warnings to clients.

Records that a client does not read would fill the server's memory. Above a cap they are dropped, and the client is told
how many.
"""

from __future__ import annotations

import logging

from fxpool.pool.server.outcomes import Work
from fxpool.pool.wire import messages as m

__all__ = ["Records"]

log = logging.getLogger(__name__)


class Records:
    """Forwards records, and counts dropped ones in `dropped_records`."""

    def __init__(self, counters: dict[str, int]) -> None:
        self._counters = counters

    def tell(self, work: Work, message: m.LogRecord | m.WarningRecord) -> None:
        """Send a record to the client of `work`, or drop it if the client does not read."""
        assert work.client is not None
        if work.client.connection.full:
            if not work.dropped:
                log.warning(
                    "dropping log records of %r: client %d is not reading its socket", work.spec.label, work.client.pid
                )
            work.dropped += 1
            self._counters["dropped_records"] += 1
            return
        self.end(work)
        message.job = work.ask.job
        work.client.connection.send(message)

    def end(self, work: Work) -> None:
        """Report how many records of `work` were dropped. Called when the client reads again, and when the job ends."""
        if work.dropped and work.client is not None:
            text = (
                f"{work.dropped} records and warnings of job {work.spec.label!r} were dropped because this process did "
            )
            text += "not read earlier ones"
            work.dropped = 0
            record = m.LogRecord("fxpool.pool", logging.WARNING, text, job=work.ask.job, pathname=__file__)
            work.client.connection.send(record)
