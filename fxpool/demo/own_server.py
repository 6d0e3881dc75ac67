"""The server that the demonstration's fxpool runs share, as programs on a host do: when it is quiet, and its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

__all__ = ["environment", "own_server", "quiet"]

_LOOK_SECONDS = 0.25
# Of one CPU, by the server and all that it started: one that waits for its clients takes less than a hundredth.
_QUIET_SHARE = 0.1
_PATIENCE = 60.0


def environment() -> Mapping[str, str]:
    """What the fxpool runs of the demonstration have in their environment besides directories of their own."""
    # The idle time ends it where the demonstration is killed and can't.
    return {"FXPOOL_POOL": "host", "FXPOOL_IDLE_TIMEOUT": "120"}


@contextlib.contextmanager
def own_server(runtime: Path) -> Iterator[None]:
    """Ends the servers under the runtime directory `runtime` on leaving, and returns when their processes are gone."""
    from fxpool.pool import ending, hosts

    try:
        yield
    finally:
        found = _processes(runtime)
        for link in hosts.links(runtime):
            ending.end(link)
        for process in psutil.wait_procs(found, timeout=ending.PATIENCE)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def quiet(runtime: Path, patience: float = _PATIENCE) -> bool:
    """Wait until the servers under `runtime` take no CPU: nobody else is to be measured beside what they prepare.

    Returns whether they do; False after `patience` (seconds). True at once where there is none.
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
    """The servers under `runtime` and all that they started."""
    from fxpool.pool import hosts

    found: list[psutil.Process] = []
    for link in hosts.links(runtime):
        with contextlib.suppress(psutil.NoSuchProcess, KeyError):
            server = psutil.Process(hosts.status(link)["server_pid"])
            found += [server, *server.children(recursive=True)]
    return found


def _cpu_seconds(processes: list[psutil.Process]) -> dict[psutil.Process, float]:
    """CPU seconds of each so far, its ended children's included: a compiler that began and ended in between counts."""
    found = {}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found[process] = times.user + times.system + times.children_user + times.children_system
    return found
