"""The servers that runs share: their processor time, whether they are idle, and their end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from fxpool.pool.client import hosts

__all__ = ["Idleness", "cpu_seconds", "ended", "processes"]

# Share of a CPU that a server and all its processes use; an idle server uses less than a hundredth.
_IDLE_SHARE = 0.1
# Below this, the kernel's ticks are too coarse for a share.
_LEAST_SECONDS = 0.2


def processes(runtime: Path) -> list[psutil.Process]:
    """Return the servers in the runtime directory `runtime` and all their descendants."""
    found: list[psutil.Process] = []
    for link in hosts.links(runtime):
        with contextlib.suppress(psutil.NoSuchProcess, KeyError):
            server = psutil.Process(hosts.status(link)["server_pid"])
            found += [server, *server.children(recursive=True)]
    return found


def cpu_seconds(of: Iterable[psutil.Process]) -> float:
    """Return the CPU seconds of processes and of their ended children, such as compilers."""
    seconds = 0.0
    for process in of:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


@contextlib.contextmanager
def ended(runtime: Path) -> Iterator[None]:
    """On exit, end the servers in the runtime directory `runtime`, and wait until their processes have ended."""
    try:
        yield
    finally:
        running = processes(runtime)
        for link in hosts.links(runtime):
            hosts.end(link)
        for process in psutil.wait_procs(running, timeout=hosts.PATIENCE)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


class Idleness:
    """Tells whether the servers in a runtime directory are idle, from call to call."""

    def __init__(self, runtime: Path) -> None:
        self._runtime = runtime
        self._at, self._seconds = time.monotonic(), cpu_seconds(processes(runtime))

    def reached(self) -> bool:
        """Return whether all servers were idle since the previous call (the first: since this object was made).

        Returns True without a server, and False if the previous call was less than 0.2 s ago.
        """
        now, servers = time.monotonic(), processes(self._runtime)
        if not servers:
            return True
        if now - self._at < _LEAST_SECONDS:
            return False
        seconds = cpu_seconds(servers)
        used, self._seconds = seconds - self._seconds, seconds
        spent, self._at = now - self._at, now
        return used < _IDLE_SHARE * spent
