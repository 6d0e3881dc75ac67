"""Shows the progress of a suite: a live table on a terminal, and a line per finished step elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live as LiveTable
from rich.table import Table

from fxpool import quantities
from fxpool.bench.case import Run
from fxpool.bench.measurement.result import in_seconds
from fxpool.bench.results import Record

if TYPE_CHECKING:
    from fxpool.bench.runner import Runner

__all__ = ["Display"]

# The phases whose end is a line, in words.
_EAGER_STEPS = {"building": "built", "compiling": "called"}
_STEPS = {"building": "built", "compiling": "compiled and called", "comparing": "compared with eager"}


class Display:
    """Shows the processes of a runner and its progress until the ``with`` block ends."""

    def __init__(self, console: Console, runner: Runner, total: int, done: int) -> None:
        self._console, self._runner, self._total, self._done = console, runner, total, done
        self._started = time.monotonic()
        self._steps: dict[tuple[Run, str], None] = {}  # the finished steps that were printed
        self._live = LiveTable(console=console, transient=True, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def record(self, record: Record) -> None:
        """Show a result, and the seconds of the parts of its run."""
        self._done += 1
        what = f"{in_seconds(record.median)} per call" if record.median is not None else ""
        if record.state == "done" and not what and record.first_call is not None:
            what = f"first call {in_seconds(record.first_call)}"
        state = record.state if record.state != "done" else ""
        took = f"({', '.join(f'{name} {spent:.1f} s' for name, spent in record.phases.items() if spent >= 0.05)})"
        words = [f"[{self._done}/{self._total}] {record.run.id}:", what, state, record.reason.partition("\n")[0], took]
        self._print(" ".join(filter(None, words)))

    def change(self) -> None:
        """Show the processes that run now, or elsewhere than on a terminal the steps that they have finished."""
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            return
        for live in self._runner.live:
            for phase, text in (_EAGER_STEPS if live.run.backend == "eager" else _STEPS).items():
                step = (live.run, f"{text} in a second process" if live.first is not None else text)
                if phase in live.phases and phase != live.phase and step not in self._steps:
                    self._steps[step] = None
                    self._print(f"{self._at()} {live.run.id}: {step[1]}, {live.phases[phase]:.1f} s")

    def _at(self) -> str:
        minutes, rest = divmod(int(time.monotonic() - self._started), 60)
        return f"{minutes}:{rest:02}"

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=not self._console.is_terminal)

    def _table(self) -> Table:
        runner = self._runner
        runs = quantities.counted(self._total, "run")
        shown = Table(title=f"{self._done} of {runs} done, {len(runner.waiting)} waiting, {self._at()}")
        for heading in ("run", "phase", "seconds", "memory"):
            shown.add_column(heading, justify="right" if heading in ("seconds", "memory") else "left")
        for live in runner.live:
            phase = f"{live.phase}, paused" if live.stopped_since is not None else live.phase
            shown.add_row(live.run.id, phase, f"{live.seconds:.0f}", f"{live.bytes >> 20} MB")
        return shown
