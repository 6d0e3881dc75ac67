"""The server that the demonstration's fxpool runs share, as programs on a host do: waits for it, and ends it.

The pool is imported inside functions: the demonstration begins by saying what it does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

__all__ = ["environment", "own_server", "quiet"]

_LOOK_SECONDS = 0.25
# Part of one CPU, for the server and all its processes; a server without work takes less than a hundredth.
_QUIET_SHARE = 0.1
_PATIENCE = 60.0


def environment() -> Mapping[str, str]:
    """Return variables for the demonstration's fxpool runs besides those of directories."""
    # The idle timeout ends the server if the demonstration is killed before it can.
    return {"FXPOOL_POOL": "host", "FXPOOL_IDLE_TIMEOUT": "120"}


@contextlib.contextmanager
def own_server(runtime: Path) -> Iterator[None]:
    """End the servers under the runtime directory `runtime` on leaving, and wait until their processes are gone."""
    from fxpool.pool.client import ending, hosts

    try:
        yield
    finally:
        processes = _processes(runtime)
        for link in hosts.links(runtime):
            ending.end(link)
        for process in psutil.wait_procs(processes, timeout=ending.PATIENCE)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def quiet(runtime: Path, patience: float = _PATIENCE) -> bool:
    """Wait until the servers under `runtime` are idle, so that their own work does not disturb a measurement.

    Returns True once they are, at once if there is none; False after `patience` (seconds).
    """
    end = time.monotonic() + patience
    before = _cpu_seconds(_processes(runtime))
    while before:
        began = time.monotonic()
        time.sleep(_LOOK_SECONDS)
        now = _cpu_seconds(_processes(runtime))
        used = sum(seconds - before.get(process, 0.0) for process, seconds in now.items())
        if used < _QUIET_SHARE * (time.monotonic() - began):
            return True
        if time.monotonic() > end:
            return False
        before = now
    return True


def _processes(runtime: Path) -> list[psutil.Process]:
    """Return the servers under `runtime` and all processes that they started."""
    from fxpool.pool.client import hosts

    processes: list[psutil.Process] = []
    for link in hosts.links(runtime):
        with contextlib.suppress(psutil.NoSuchProcess, KeyError):
            server = psutil.Process(hosts.status(link)["server_pid"])
            processes += [server, *server.children(recursive=True)]
    return processes


def _cpu_seconds(processes: list[psutil.Process]) -> dict[psutil.Process, float]:
    """Return the CPU seconds of each so far, with its ended children's: compilers that came and went count."""
    seconds = {}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds[process] = times.user + times.system + times.children_user + times.children_system
    return seconds
