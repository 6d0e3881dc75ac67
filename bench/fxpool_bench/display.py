"""Shows the progress of a suite: a live table on a terminal, and a line per result elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live as LiveTable
from rich.table import Table

from fxpool.bench.report import seconds
from fxpool.bench.results import Record

if TYPE_CHECKING:
    from fxpool.bench.runner import Runner

__all__ = ["Display"]


class Display:
    """Shows the processes of a runner and its progress until the ``with`` block ends."""

    def __init__(self, console: Console, runner: Runner, total: int, there: int) -> None:
        self._console, self._runner, self._total, self._done = console, runner, total, there
        self._started = time.monotonic()
        self._live = LiveTable(console=console, transient=True, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Display:
        if self._done:
            self._console.print(f"{self._done} of {self._total} are already done", highlight=False)
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def record(self, record: Record) -> None:
        """Show a result."""
        self._done += 1
        what = seconds(record.median) if record.median is not None else ""
        state = record.state if record.state != "done" else ""
        line = f"[{self._done}/{self._total}] {record.run.id}  {what} {state} {record.reason.partition(chr(10))[0]}"
        self._console.print(line.rstrip(), highlight=False, markup=False, soft_wrap=True)

    def change(self) -> None:
        """Show the processes that run now."""
        if self._live is not None:
            self._live.update(self._table(), refresh=True)

    def _table(self) -> Table:
        runner = self._runner
        minutes, rest = divmod(int(time.monotonic() - self._started), 60)
        shown = Table(title=f"{self._done} of {self._total} done, {len(runner.waiting)} wait, {minutes}:{rest:02}")
        for heading in ("run", "phase", "seconds", "memory"):
            shown.add_column(heading, justify="right" if heading in ("seconds", "memory") else "left")
        for live in runner.live:
            phase = f"{live.phase}, paused" if live.stopped_since is not None else live.phase
            shown.add_row(live.run.id, phase, f"{live.seconds:.0f}", f"{live.bytes >> 20} MB")
        return shown
