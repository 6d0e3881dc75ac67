"""Raises the server's limit of file descriptors, and tells when it has to refuse clients.

A server without descriptors could neither answer nor start a zygote, and clients would take it for one that hangs.
"""

from __future__ import annotations

import os
import resource

__all__ = ["RESERVED", "left", "raise_limit", "set_limit"]

#: Descriptors that clients leave free, for the zygote, workers, logs, and refusals.
RESERVED = 64
# Far more than a host has processes of one user. Programs that close all descriptors of a higher limit take long.
_MOST = 65536


def raise_limit() -> int:
    """Raise the soft limit of this process as far as it may; return the limit before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft


def set_limit(pid: int, soft: int) -> None:
    """Set the soft limit of a child to what it would be without `raise_limit`. Never raises."""
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    except (OSError, ValueError):
        pass  # it ended


def left() -> int:
    """Return how many more descriptors this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft - len(os.listdir("/proc/self/fd"))
