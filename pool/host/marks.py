"""Marks a process and all its descendants by an environment variable, to find and kill them later.

A stopped process does not notice that its parent died, and a process that left its session has lost its parent. The
mark in the environment still identifies both. The host's server carries no mark, because other processes use it too.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

__all__ = ["VARIABLE", "kill_marked", "marked"]

#: The variable that holds a mark. It begins with an underscore: variables that begin with FXPOOL_ are settings.
VARIABLE = "_FXPOOL_MARK"
_SECONDS = 5.0


def marked(mark: str) -> list[int]:
    """Return the pids of all processes with this mark except this process. Zombies have no environment."""
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
    """Kill all processes with this mark, and those that they start during the call, for at most 5 s."""
    end = time.monotonic() + _SECONDS
    while (pids := marked(mark)) and time.monotonic() < end:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        time.sleep(0.05)
