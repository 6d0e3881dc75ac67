"""Shows the progress of each graph as lines: a summary on a terminal, every event in a log.

    fxpool.progress()                    or FXPOOL_PROGRESS=1: on standard error
    fxpool.progress("compile.log")       or FXPOOL_PROGRESS=compile.log: a line per event, into a file

A line of a log, which begins with the seconds since the log was opened, and a terminal's lines about the same graph:

    12.345 graph 3 [1/0]: compiling in worker 4711
    fxpool: graph 3 [1/0]: compiling in worker 4711: lowering, 8 s so far
    fxpool: graph 3 [1/0]: ready, compiled by a worker after 12.3 s

The terminal belongs to the program, and its cursor may be anywhere: the program prints through Python, C and other
processes, on two streams. So this module never moves the cursor or erases text. It writes whole lines from its own
thread, so that a stopped terminal (Ctrl-S) blocks that thread, not a compile. Bars of tqdm are cleared for the lines
and drawn again below them.

Text that can't be written is dropped, because in a buffer it would make the program's later output, or its exit, fail.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fxpool import forks, notices, standard_streams
from fxpool.watch import events
from fxpool.watch.events import Span, State

__all__ = ["Lines", "Progress", "Summary", "Terminal", "display"]

# Seconds; events within them are shown together.
_TOGETHER_SECONDS = 0.2
# Seconds after which a graph under way gets a line, and again each time that its time has doubled.
_LONG_SECONDS = 2.0
# Up to so many graphs with the same text have a line each.
_SEPARATE = 3
_UNDER_WAY = ("queued", "compiling", "loading")
_END_SECONDS = 1.0
_BEFORE_DETAIL = {"ready": ", ", "failed": ": "}

File = IO[str] | None


class Lines:
    """Writes a line per event. Closes only a file that it opened itself."""

    def __init__(self, file: IO[str] | str | os.PathLike[str] | None) -> None:
        self._descriptor, self._path, self._prefix = -1, "", ""
        self._file: Callable[[], File] = lambda: None
        if file is None:
            # Looked up each time: a program may replace it.
            self._file, self._prefix = lambda: sys.stderr, notices.PREFIX
        elif not isinstance(file, str | os.PathLike):
            opened = file
            self._file = lambda: opened
        else:
            self._path = os.path.abspath(file)
            self._open()
        self._closed = False
        self._lock = forks.lock(self, "_lock")
        self._begun = time.monotonic()
        self.name = f"progress {_named(file)}"

    def _open(self) -> None:
        # Appended to, as several processes may name one file. Non-blocking: a pipe without a reader must not hold us
        # up.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._descriptor = os.open(self._path, flags, 0o666)

    def on_state(self, event: State) -> None:
        line = f"{self._prefix}{event.at - self._begun:.3f} {event.graph}: {_told(event)}\n"
        with self._lock:
            if self._closed:
                return
            if self._path:
                if self._descriptor < 0:
                    self._open()
                _write_all(self._descriptor, line.encode("utf-8", "backslashreplace"))
            else:
                _write(self._file(), line)

    def on_span(self, event: Span) -> None:
        """Ignore spans."""

    def release(self) -> None:
        """Close the file until the next event."""
        with self._lock:
            self._close_file()

    def close(self) -> None:
        with self._lock:
            self._close_file()
            self._closed = True

    def _close_file(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Terminal:
    """Writes lines about graphs that are done, and those that take long. See `Summary`."""

    name = "progress on the terminal"

    def __init__(self, file: File = None) -> None:
        self._file: Callable[[], File] = (lambda: sys.stderr) if file is None else (lambda: file)
        self._lock = forks.lock(self, "_lock")
        self._news = forks.event()
        self._over = forks.event()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._summary = Summary()
        self._thread: threading.Thread | None = None

    def on_state(self, event: State) -> None:
        with self._lock:
            if self._pid != os.getpid():  # after a fork: events so far are for the parent to show
                self._begin()
            if self._over.is_set():
                return
            self._summary.add(event)
            if self._thread is None:
                self._thread = threading.Thread(target=self._show, name="fxpool-progress", daemon=True)
                self._thread.start()
                atexit.register(self.close)  # shows the rest before the interpreter ends
        self._news.set()

    def on_span(self, event: Span) -> None:
        """Ignore spans."""

    def close(self) -> None:
        """Show the rest, waiting up to `_END_SECONDS`. Idempotent."""
        atexit.unregister(self.close)
        self._over.set()
        self._news.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END_SECONDS)

    def release(self) -> None:
        """Show the rest and end the thread, until the next event."""
        with self._lock:
            thread = self._thread if self._pid == os.getpid() and not self._over.is_set() else None
        if thread is None:
            return
        self.close()
        if not thread.is_alive():
            self._thread = None
            self._over.clear()

    def _show(self) -> None:
        try:
            while not self._over.is_set():
                with self._lock:
                    due = self._summary.due
                self._news.wait(None if due is None else max(0.0, due - time.monotonic()))
                self._over.wait(_TOGETHER_SECONDS)
                self._news.clear()
                self._say(last=False)
            self._say(last=True)
        except Exception as error:
            self._over.set()
            notices.log.warning("%s stopped: %s", self.name, error)

    def _say(self, *, last: bool) -> None:
        with self._lock:
            lines = self._summary.lines(time.monotonic(), last=last)
        for line in lines:
            _write(self._file(), f"{notices.PREFIX}{line}\n", beside_bars=True)


@dataclass
class _UnderWay:
    event: State
    since: float
    due: float


class Summary:
    """Decides what to show, and when: a state machine without clock or terminal."""

    def __init__(self) -> None:
        self._under_way: dict[str, _UnderWay] = {}
        self._through: list[tuple[State, float | None]] = []
        self._last: dict[str, str] = {}

    def add(self, event: State) -> None:
        self._last[event.graph] = event.state
        known = self._under_way.get(event.graph)
        if event.state not in _UNDER_WAY:
            self._under_way.pop(event.graph, None)
            self._through.append((event, None if known is None else event.at - known.since))
        elif known is None:
            self._under_way[event.graph] = _UnderWay(event, event.at, event.at + _LONG_SECONDS)
        else:
            known.event = event

    @property
    def due(self) -> float | None:
        """Return when to show something next even without an event, or None."""
        return min((one.due for one in self._under_way.values()), default=None)

    def lines(self, now: float, *, last: bool = False) -> list[str]:
        """Return the lines to show now, each once; with `last`, also counts by state if there are several graphs."""
        told = []
        through, self._through = self._through, []
        counts = Counter(_told(event) for event, _ in through)
        for text in [text for text, count in counts.items() if count > _SEPARATE]:
            told.append(f"{counts.pop(text)} graphs: {text}")
        for event, seconds in through:
            if _told(event) in counts:
                took = f" after {seconds:.1f} s" if seconds is not None else ""
                told.append(f"{event.graph}: {_told(event)}{took}")
        told += self._long(now)
        if last and len(self._last) > 1:
            states = Counter(self._last.values())
            told.append(", ".join(f"{states[state]} {state}" for state in events.STATES if states[state]))
        return told

    def _long(self, now: float) -> list[str]:
        due = [one for one in self._under_way.values() if one.due <= now]
        for one in due:
            while one.due <= now:
                one.due = one.since + 2 * (one.due - one.since)
        if len(due) <= _SEPARATE:
            return [f"{one.event.graph}: {_told(one.event)}, {now - one.since:.0f} s so far" for one in due]
        counts = Counter(one.event.state for one in due)
        states = ", ".join(f"{counts[state]} {state}" for state in _UNDER_WAY if counts[state])
        return [f"{len(due)} graphs: {states}, the first for {now - min(one.since for one in due):.0f} s so far"]


def _told(event: State) -> str:
    stage = f"stage {event.stage + 1}, " if event.stage else ""
    if not event.detail:
        return f"{stage}{event.state}"
    return f"{stage}{event.state}{_BEFORE_DETAIL.get(event.state, ' ')}{event.detail}"


def _named(file: IO[str] | str | os.PathLike[str] | None) -> str:
    if file is None:
        return "on standard error"
    return f"in {getattr(file, 'name', 'a file')}" if hasattr(file, "write") else f"in {os.fspath(file)}"


def _write(file: File, text: str, *, beside_bars: bool = False) -> None:
    """Write to a file of the program's. No-op if `file` is None."""
    if file is None:
        return
    bars = getattr(sys.modules.get("tqdm.std"), "tqdm", None) if beside_bars else None
    if bars is not None:
        bars.write(text, file=file, end="")  # clears its bars, and draws them below
        file.flush()
    elif isinstance(file, io.TextIOWrapper) and (descriptor := _descriptor(file)) is not None:
        file.flush()  # the program's own output comes first
        _write_all(descriptor, text.encode(file.encoding, "backslashreplace"))
    else:
        file.write(text)
        file.flush()


def _descriptor(file: IO[str]) -> int | None:
    try:
        return file.fileno()
    except (OSError, ValueError):  # a file-like object without a descriptor
        return None


def _write_all(descriptor: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BlockingIOError:
        pass  # a reader that is too slow misses lines


def display(to: str | os.PathLike[str] | IO[str] | None = None) -> Lines | Terminal:
    """Return a display on `to`: a path, an open file, or None for standard error, whatever that is at the time."""
    if to is not None and not hasattr(to, "write"):
        return Lines(Path(to))
    file: Any = sys.stderr if to is None else to
    return Terminal(to) if _is_terminal(file) else Lines(to)  # type: ignore[arg-type]


def _is_terminal(file: Any) -> bool:
    try:
        return bool(file.isatty())
    except (AttributeError, ValueError):  # no file, or a closed one
        return False


class Progress:
    """See `fxpool.progress`."""

    def __init__(self, to: str | os.PathLike[str] | IO[str] | None = None) -> None:
        standard_streams.keep_standard()
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
