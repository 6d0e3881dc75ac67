"""Raises the server's limit of file descriptors, and tells when it has to refuse clients.

A server without descriptors could neither answer nor start a zygote, and clients would take it for one that hangs.
"""

from __future__ import annotations

import os
import resource

__all__ = ["are_short", "raise_limit", "set_limit"]

# Descriptors that clients leave free, for the zygote, workers, logs, and refusals; under a low limit a quarter of it.
_RESERVED = 64
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


def are_short() -> bool:
    """Return whether the descriptors that are left are reserved."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return False
    return soft - len(os.listdir("/proc/self/fd")) < min(_RESERVED, soft // 4)
