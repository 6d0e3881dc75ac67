"""Writes a run as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing: ``FXPOOL_TRACE=run.json``.

All processes that name the file share it, on one clock: programs, their server, and workers. It is a JSON array of
trace events (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU). The array is complete
and valid after every event, so a killed run leaves all its events so far.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
from pathlib import Path
from typing import IO, Any

from fxpool import forks, notices
from fxpool.watch.events import Span, State

__all__ = ["TraceFile"]

log = notices.logger(__name__)

_HEAD, _TAIL = b"[\n", b"\n]\n"


class TraceFile:
    """Appends events to a trace file, which may hold another process's events or an earlier run's.

    A file that can't be written, or holds something else, is warned of once; the program goes on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = f"the trace {path}"
        self._lock = forks.lock(self, "_lock")
        self._named: set[int] = set()
        self._numbers = 0
        self._broken = False

    def on_state(self, event: State) -> None:
        """Write an instant with the graph's state."""
        detail = f"{event.state}: {event.detail}" if event.detail else event.state
        row = self._row("i", f"{event.graph} {event.state}", event.at, os.getpid(), threading.get_native_id())
        self._add([*self._names(os.getpid(), ""), row | {"s": "t", "args": {"graph": event.graph, "state": detail}}])

    def on_span(self, event: Span) -> None:
        rows = self._names(event.pid, event.role)
        args = {"args": dict(event.facts)} if event.facts else {}
        if event.overlapping:
            self._numbers += 1
            which = {"id": f"{os.getpid()}-{self._numbers}", "cat": "queue", **args}
            rows.append(self._row("b", event.name, event.begin, event.pid, event.thread) | which)
            rows.append(self._row("e", event.name, event.end, event.pid, event.thread) | which)
        else:
            length = {"dur": round((event.end - event.begin) * 1e6, 1)}
            rows.append(self._row("X", event.name, event.begin, event.pid, event.thread) | length | args)
        self._add(rows)

    def close(self) -> None:
        """No-op: the file is closed after each event."""

    def _row(self, kind: str, name: str, at: float, pid: int, thread: int) -> dict[str, Any]:
        return {"ph": kind, "name": name, "ts": round(at * 1e6, 1), "pid": pid, "tid": thread}

    def _names(self, pid: int, role: str) -> list[dict[str, Any]]:
        if pid in self._named:
            return []
        self._named.add(pid)
        shown = role or f"{Path(sys.argv[0]).name or 'python'}"
        return [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": shown}}]

    def _add(self, rows: list[dict[str, Any]]) -> None:
        text = b",\n".join(json.dumps(row, default=str).encode() for row in rows)
        with self._lock:
            if self._broken:
                return
            try:
                self._write(text)
            except OSError as error:
                self._broken = True
                log.warning("FXPOOL_TRACE: the trace stopped: %s", error)

    def _write(self, text: bytes) -> None:
        # Opened each time, so that a program's children inherit no descriptor.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        with os.fdopen(os.open(self.path, flags, 0o644), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                self._add_to(file, text)
                file.flush()
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough if a child was forked since

    def _add_to(self, file: IO[bytes], text: bytes) -> None:
        size = file.seek(0, os.SEEK_END)
        if not size:
            file.write(_HEAD + text + _TAIL)
            return
        file.seek(0)
        head = file.read(len(_HEAD))
        file.seek(max(0, size - len(_TAIL)))
        if (head, file.read()) != (_HEAD, _TAIL):
            raise OSError(f"{self.path} exists and is not a trace of fxpool")
        file.seek(size - len(_TAIL))
        file.write(b",\n" + text + _TAIL)
