"""Marks processes, and all that they start, by an environment variable: found and killed wherever they went.

A stopped process does not notice that its parent died, and one that left its session is nobody's child. What is marked
is found by its environment. The host's server is not marked, whoever started it: others use it, too.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

__all__ = ["VARIABLE", "kill_marked", "marked"]

#: The variable that holds a mark. Those that begin with FXPOOL_ are settings.
VARIABLE = "_FXPOOL_MARK"
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
