"""Ends a server that hangs, once another has taken its place.

A server that was merely slow sees within seconds that its link leads elsewhere, marks its directory and leaves when its
jobs are done. One that does not, stopped or in an endless loop, would stay forever: it is killed by the server that
replaced it, and its zygote and workers go with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

from fxpool.pool.host import runtime_dir

__all__ = ["LEAVING", "LINK_SECONDS", "is_server_of", "retire_predecessor"]

# A file in the private directory of a server that takes no new client.
LEAVING = "leaving"
# How often the host's server checks that its link still leads to it.
LINK_SECONDS = 5.0
# Twice that: a loaded machine is slow, and the server that is killed may have jobs.
_PATIENCE_SECONDS = 10.0
_LOOK_SECONDS = 0.25

log = logging.getLogger(__name__)


async def retire_predecessor(directory: Path) -> None:
    """Wait until the server of `directory` is gone or says that it leaves; kill it if it does neither within 10 s.

    If cancelled, it only stops waiting.
    """
    for _ in range(round(_PATIENCE_SECONDS / _LOOK_SECONDS)):
        if runtime_dir.holder(directory) is None or (directory / LEAVING).exists():
            return
        await asyncio.sleep(_LOOK_SECONDS)
    if not _kill(directory):
        return
    for _ in range(round(_PATIENCE_SECONDS / _LOOK_SECONDS)):  # bounded: the kernel may not let go of it
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
        if runtime_dir.holder(directory) != pid or not is_server_of(pid, directory):
            return False
        log.warning("killed server %d, which hung for %g s after it was replaced", pid, _PATIENCE_SECONDS)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


def is_server_of(pid: int, directory: Path) -> bool:
    """Return whether a process was started as the server of a private directory."""
    try:
        return os.fsencode(directory) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
