"""Waits for and ends the server that the demonstration's runs with fxpool share, as programs on a host do.

The pool is imported inside functions, so that the demonstration prints its first lines at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from fxpool.bench import servers

__all__ = ["environment", "own_server", "quiet"]

_LOOK_SECONDS = 0.25
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
        processes = servers.processes(runtime)
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
    idleness = servers.Idleness(runtime)
    while not idleness.reached():
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
