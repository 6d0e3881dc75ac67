"""Limits of this process: CPU affinity, file descriptors, and the CPU quota and memory limits of its cgroups.

os.cpu_count() returns the cores of the host: a container that may use two of 64 would start 64 workers.
"""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "MemoryGroup", "Mount", "cpu_quota", "default_workers", "descriptors_are_short", "memory_groups",
    "raise_descriptors", "set_descriptors",
]  # fmt: skip

# Descriptors that clients leave free, for the zygote, workers, logs, and refusals; under a low limit a quarter of it.
_RESERVED = 64
# Far more than a host has processes of one user. Programs that close all descriptors of a higher limit take long.
_MOST = 65536

# cgroup version 1 writes the largest multiple of a page for "no limit".
_UNLIMITED = 1 << 60


class MemoryGroup(NamedTuple):
    """A cgroup with a memory limit (bytes), and the files that hold its limit, usage and statistics."""

    limit: int
    source: Path
    usage: Path
    statistics: Path


class Mount(NamedTuple):
    """A cgroup file system: the directory of the hierarchy (`root`) that is visible at `point`."""

    root: str
    point: Path
    version: int


def default_workers(*, affinity: int | None = None, proc: str | Path = "/proc/self") -> tuple[int, str]:
    """Return (number of workers, the limit that determines it). At least 1; a CPU quota is rounded up."""
    count = affinity if affinity is not None else len(os.sched_getaffinity(0))
    rule = "CPU affinity"
    quota = cpu_quota(proc)
    if quota is not None and math.ceil(quota[0]) < count:
        count, rule = math.ceil(quota[0]), quota[1]
    return max(1, count), rule


def cpu_quota(proc: str | Path = "/proc/self") -> tuple[float, str] | None:
    """Return (CPUs, the file that sets them) for the tightest CPU quota of this process, or None without a quota."""
    return min((quota for group in _groups("cpu", proc) if (quota := _quota(*group)) is not None), default=None)


def memory_groups(proc: str | Path = "/proc/self") -> list[MemoryGroup]:
    """Return the cgroups of this process that limit memory, innermost first."""
    return [known for group in _groups("memory", proc) if (known := _memory(*group)) is not None]


def _groups(controller: str, proc: str | Path) -> list[tuple[Path, int]]:
    """Return (directory, version) of this process's groups, each group before its parents."""
    try:
        groups = (Path(proc) / "cgroup").read_text().splitlines()
        mounts = _mounts((Path(proc) / "mountinfo").read_text(), controller)
    except OSError:
        return []
    directories: list[tuple[Path, int]] = []
    for line in groups:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            directories += _along(mounts.get(2), path)
        elif controller in controllers.split(","):
            directories += _along(mounts.get(1), path)
    return directories


def _mounts(mountinfo: str, controller: str) -> dict[int, Mount]:
    """Return the cgroup2 mount and the v1 mount of `controller`, by version (proc(5), mountinfo)."""
    mounts: dict[int, Mount] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if len(left) < 5 or len(right) < 3:
            continue
        root, point = _unescape(left[3]), Path(_unescape(left[4]))
        if right[0] == "cgroup2":
            mounts.setdefault(2, Mount(root, point, 2))
        elif right[0] == "cgroup" and controller in right[2].split(","):
            mounts.setdefault(1, Mount(root, point, 1))
    return mounts


def _unescape(path: str) -> str:
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def _along(mount: Mount | None, path: str) -> list[tuple[Path, int]]:
    """Return the group at `path` and its parents, as far as the mount shows them."""
    if mount is None:
        return []
    # Inside a container the mount may show only a part of the hierarchy, and `path` may be the host's.
    if mount.root != "/" and (path == mount.root or path.startswith(mount.root + "/")):
        path = path[len(mount.root) :]
    parts = [part for part in path.split("/") if part]
    if ".." in parts or not mount.point.joinpath(*parts).is_dir():
        parts = []
    return [(mount.point.joinpath(*parts[:depth]), mount.version) for depth in range(len(parts), -1, -1)]


def _quota(group: Path, version: int) -> tuple[float, str] | None:
    try:
        if version == 2:
            file = group / "cpu.max"
            quota, period = file.read_text().split()[:2]
            if quota == "max":
                return None
        else:
            file = group / "cpu.cfs_quota_us"
            quota, period = file.read_text(), (group / "cpu.cfs_period_us").read_text()
        cpus = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
    return (cpus, f"CPU quota in {file}") if cpus > 0 else None


def _memory(group: Path, version: int) -> MemoryGroup | None:
    limit, usage = (
        ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    try:
        known = MemoryGroup(int((group / limit).read_text()), group / limit, group / usage, group / "memory.stat")
    except (OSError, ValueError):  # "max"
        return None
    return known if 0 < known.limit < _UNLIMITED else None


def raise_descriptors() -> int:
    """Raise the soft limit of file descriptors as far as it may be raised; return the limit before.

    A server without descriptors could neither answer nor start a zygote, and clients would take it for one that hangs.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft


def set_descriptors(pid: int, soft: int) -> None:
    """Set the soft limit of a child to what it would be without `raise_descriptors`. Never raises."""
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    except (OSError, ValueError):
        pass  # it ended


def descriptors_are_short() -> bool:
    """Return whether the descriptors that are left are reserved."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return False
    return soft - len(os.listdir("/proc/self/fd")) < min(_RESERVED, soft // 4)
