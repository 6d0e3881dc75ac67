"""Ends what a runner that was killed has left: its runs, and those of their processes that were stopped.

    python -m fxpool.benchmarks.guard MARK        standard input: a pipe whose other end the runner has

A stopped process does not notice that its parent died. So a process that does nothing else waits for the runner's end,
and kills every process whose environment has the runner's mark.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

__all__ = ["VARIABLE", "kill_marked", "marked"]

#: The environment variable that marks a runner's processes.
VARIABLE = "_FXPOOL_BENCH_RUN"  # those that begin with FXPOOL_ are settings
_SECONDS = 5.0


def marked(mark: str) -> list[int]:
    """Return the processes with this mark, but not this one. Zombies have no environment."""
    wanted = f"{VARIABLE}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def kill_marked(mark: str) -> None:
    """Kill all processes with this mark, and those they start meanwhile."""
    end = time.monotonic() + _SECONDS
    while (pids := marked(mark)) and time.monotonic() < end:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        time.sleep(0.05)


def main(mark: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when the runner has
    while os.read(0, 1):
        pass
    kill_marked(mark)


if __name__ == "__main__":
    main(sys.argv[1])
