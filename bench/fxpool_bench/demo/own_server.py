"""Waits for and ends the server that the demonstration's runs with fxpool share, as programs on a host do.

The pool is imported inside functions, so that the demonstration prints its first lines at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

__all__ = ["environment", "own_server", "quiet"]

_LOOK_SECONDS = 0.25
# Share of a CPU that the server and all its processes use; an idle server uses less than a hundredth.
_QUIET_SHARE = 0.1
_PATIENCE = 60.0


def environment() -> Mapping[str, str]:
    """Return environment variables for the demonstration's runs with fxpool, besides those for directories."""
    # The idle timeout ends the server if the demonstration is killed before it can.
    return {"FXPOOL_POOL": "host", "FXPOOL_IDLE_TIMEOUT": "120"}


@contextlib.contextmanager
def own_server(runtime: Path) -> Iterator[None]:
    """On exit, end the servers in the runtime directory `runtime`, and wait until their processes have ended."""
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
    """Wait until the servers in `runtime` are idle, so that their preparations do not disturb a measurement.

    Returns True once they are idle, immediately without a server; False after `patience` (seconds).
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
    """Return the servers in `runtime` and all their descendants."""
    from fxpool.pool.client import hosts

    processes: list[psutil.Process] = []
    for link in hosts.links(runtime):
        with contextlib.suppress(psutil.NoSuchProcess, KeyError):
            server = psutil.Process(hosts.status(link)["server_pid"])
            processes += [server, *server.children(recursive=True)]
    return processes


def _cpu_seconds(processes: list[psutil.Process]) -> dict[psutil.Process, float]:
    """Return the CPU seconds of each process, including its ended children, such as compilers."""
    seconds = {}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds[process] = times.user + times.system + times.children_user + times.children_system
    return seconds
