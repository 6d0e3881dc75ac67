"""What becomes of each graph, on a terminal while it happens or line by line in a log.

    fxpool.progress()                    or FXPOOL_PROGRESS=1: on standard error
    fxpool.progress("compile.log")       or FXPOOL_PROGRESS=compile.log: a line per event, into a file

On a terminal the graphs that are under way have a line each below the counts of all; elsewhere every event is a line:

    12.345 graph 3 [1/0]: compiling in worker 4711
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import IO, Any

from fxpool import events, forks
from fxpool.events import Span, State

__all__ = ["Lines", "Progress", "Terminal", "display"]

_REFRESH_SECONDS = 0.2
# Of a graph that is through, the line stays so long.
_LINGER_SECONDS = 1.0
_UNDER_WAY = ("queued", "compiling", "loading")
_SHOWN_GRAPHS = 16


class Lines:
    """A line per event. Closes what it opened itself."""

    def __init__(self, file: IO[str] | str | os.PathLike[str]) -> None:
        self._opened = not hasattr(file, "write")
        # Line by line, and appended: several processes may name one file.
        self._file: Any = open(file, "a", buffering=1) if self._opened else file  # type: ignore[arg-type]  # noqa: SIM115
        self._lock = forks.lock(self, "_lock")
        self._begun = time.monotonic()

    def on_state(self, event: State) -> None:
        with self._lock:
            if not self._file.closed:
                self._file.write(_line(event, event.at - self._begun) + "\n")
                self._file.flush()

    def on_span(self, event: Span) -> None:
        """Times are for a trace."""

    def close(self) -> None:
        with self._lock:
            if self._opened:
                self._file.close()


class Terminal:
    """A live table on a terminal; it is gone when nothing is under way, and one line of counts is left."""

    def __init__(self, file: IO[str]) -> None:
        from rich.console import Console

        self._console = Console(file=file)
        self._lock = forks.lock(self, "_lock")
        self._graphs: dict[str, State] = {}
        self._over = forks.event()
        self._news = forks.event()
        self._begun = time.monotonic()
        self._thread: threading.Thread | None = None

    def on_state(self, event: State) -> None:
        with self._lock:
            self._graphs[event.graph] = event
            if self._thread is None and not self._over.is_set():
                self._thread = threading.Thread(target=self._show, name="fxpool-progress", daemon=True)
                self._thread.start()
                atexit.register(self.close)  # the table hides the cursor, and its thread must not outlive Python
        self._news.set()

    def on_span(self, event: Span) -> None:
        """Times are for a trace."""

    def close(self) -> None:
        atexit.unregister(self.close)
        self._over.set()
        self._news.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)

    def _show(self) -> None:
        from rich.live import Live

        while not self._over.is_set():
            self._news.wait()
            if not self._under_way(time.monotonic()):
                self._news.clear()
                continue
            # Standard output and error are the program's: they are not redirected.
            with Live(
                console=self._console, transient=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            ) as live:
                while not self._over.is_set() and self._under_way(time.monotonic()):
                    self._news.clear()
                    live.update(self.table(), refresh=True)
                    self._over.wait(_REFRESH_SECONDS)
            self._console.print(self._counts(), highlight=False, markup=False)

    def _under_way(self, now: float) -> bool:
        with self._lock:
            return any(event.state in _UNDER_WAY or now - event.at < _LINGER_SECONDS for event in self._graphs.values())

    def table(self) -> Any:
        """What is shown now."""
        from rich.table import Table

        now = time.monotonic()
        with self._lock:
            shown = [
                event
                for event in self._graphs.values()
                if event.state in _UNDER_WAY or now - event.at < _LINGER_SECONDS
            ]
        table = Table(box=None, show_header=False, title=self._counts(), title_justify="left", title_style="")
        for event in shown[:_SHOWN_GRAPHS]:
            table.add_row(event.graph, _told(event), f"{now - event.at:.1f} s")
        if len(shown) > _SHOWN_GRAPHS:
            table.add_row(f"and {len(shown) - _SHOWN_GRAPHS} more")
        return table

    def _counts(self) -> str:
        with self._lock:
            counts = Counter(event.state for event in self._graphs.values())
        told = ", ".join(f"{counts[state]} {state}" for state in events.STATES if counts[state])
        return f"fxpool: {told} after {time.monotonic() - self._begun:.1f} s"


def _told(event: State) -> str:
    stage = f"stage {event.stage + 1}, " if event.stage else ""
    return f"{stage}{event.state}" + (f" {event.detail}" if event.detail else "")


def _line(event: State, seconds: float) -> str:
    return f"{seconds:.3f} {event.graph}: {_told(event)}"


def display(to: str | os.PathLike[str] | IO[str] | None = None) -> Lines | Terminal:
    """Where `to` says: a file's path, an open file, or None for standard error."""
    if to is not None and not hasattr(to, "write"):
        return Lines(Path(to))  # type: ignore[arg-type]
    file: Any = sys.stderr if to is None else to
    return Terminal(file) if file.isatty() else Lines(file)


class Progress:
    """See `fxpool.progress`."""

    def __init__(self, to: str | os.PathLike[str] | IO[str] | None = None) -> None:
        self._display = display(to)
        events.listen(self._display)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the display. Idempotent."""
        events.unlisten(self._display)
        self._display.close()
