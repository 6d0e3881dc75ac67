"""Kills a hung server after another server has replaced it.

A server that was merely slow sees within seconds that its link leads to another server, marks its directory and leaves
when its jobs are done. A server that is stopped or in an endless loop would stay forever, so its replacement kills it.
Its zygote and workers die with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

from fxpool.pool.host import runtime_dir

__all__ = ["LINK_SECONDS", "retire"]

# Seconds between two checks of the host's server that its link still leads to it.
LINK_SECONDS = 5.0
# Twice that: a server on a loaded machine may only be slow, and killing it loses its jobs.
_PATIENCE_SECONDS = 10.0
_LOOK_SECONDS = 0.25

log = logging.getLogger(__name__)


async def retire(directory: Path) -> None:
    """Wait until the server of `directory` has ended or is leaving; kill it if it does neither within 10 s.

    A cancellation only stops the wait.
    """
    for _ in range(round(_PATIENCE_SECONDS / _LOOK_SECONDS)):
        if runtime_dir.holder(directory) is None or (directory / runtime_dir.LEAVING).exists():
            return
        await asyncio.sleep(_LOOK_SECONDS)
    if not _kill(directory):
        return
    for _ in range(round(_PATIENCE_SECONDS / _LOOK_SECONDS)):  # bounded: the kernel may keep it in a system call
        if runtime_dir.holder(directory) is None:
            return runtime_dir.remove(directory)
        await asyncio.sleep(_LOOK_SECONDS)


def _kill(directory: Path) -> bool:
    pid = runtime_dir.holder(directory)
    if pid is None:
        return False
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False  # it ended just now
    try:
        # The pid may have been reused, or belong to another container that shares the directory.
        if runtime_dir.holder(directory) != pid or not runtime_dir.is_server_of(pid, directory):
            return False
        log.warning("killed server %d, which had not ended %g s after it was replaced", pid, _PATIENCE_SECONDS)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True
