"""Measures the memory that jobs use and that the host has left, for comparison with the limits.

A job is charged its proportional set size: pages shared with the zygote count by their share, and pages shared among
the job's own processes count once. Its processes are its worker, those of its sub-jobs, and all their descendants.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from fxpool.pool.host import limits

__all__ = [
    "Host",
    "advice",
    "at_most",
    "default_limit",
    "proportional",
    "too_little",
    "tree",
    "warm_up_fits",
    "workers",
]  # fmt: skip

_PAGE = os.sysconf("SC_PAGE_SIZE")
# Not every kernel has this file.
_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
# In bytes. Ordinary graphs would exceed a lower limit: a worker takes 200 to 400 MB, and so does each of its compilers.
_LEAST = 2 << 30
# In bytes: server and zygote, an ordinary job on top of them, and the smallest useful job.
_POOL = 300 << 20
_JOB = 700 << 20
_LEAST_JOB = 400 << 20


@dataclass(frozen=True)
class Host:
    """The memory this process may use: the machine's, or that of the tightest cgroup."""

    groups: tuple[limits.MemoryGroup, ...]

    @staticmethod
    def look(proc: str | Path = "/proc/self") -> Host:
        """Read this process's memory cgroups."""
        return Host(tuple(limits.memory_groups(proc)))

    def total(self) -> tuple[int, str]:
        """Return (bytes, the limit that sets them)."""
        machine = (_machine_total(), "the machine's memory")
        return min([machine, *((group.limit, f"the memory limit in {group.source}") for group in self.groups)])

    def used(self) -> tuple[float, str]:
        """Return (the share in use that can't be reclaimed, 0.0 to 1.0; the limit), for the tightest limit.

        Cached files count as free: the kernel drops them first. Returns (0.0, "nothing") if no file can be read, as in
        a process that is out of descriptors.
        """
        shares = []
        try:
            machine = psutil.virtual_memory()
            shares.append((1.0 - machine.available / machine.total, "the machine's memory"))
        except OSError:
            pass
        for group in self.groups:
            used = _used(group, "inactive_file")
            if used is not None:
                shares.append((used / group.limit, f"the memory limit in {group.source}"))
        return max(shares, default=(0.0, "nothing"))

    def room(self) -> tuple[int, str]:
        """Return (bytes still available, the limit), for the tightest limit.

        All cached files count as free, even recently used ones: dropping those is slow, but does not fail.
        """
        rooms = []
        try:
            rooms.append((psutil.virtual_memory().available, "the machine's memory"))
        except OSError:
            pass
        for group in self.groups:
            used = _used(group, "inactive_file", "active_file")
            if used is not None:
                rooms.append((max(0, group.limit - used), f"the memory limit in {group.source}"))
        return min(rooms, default=self.total())

    def killed(self) -> int:
        """Return how many processes the kernel has killed because one of the groups was out of memory."""
        return sum(_killed(group) for group in self.groups)


def _used(group: limits.MemoryGroup, *given_up: str) -> int | None:
    """Return the bytes that a group uses, without cached files of the kinds in `given_up`; None if unknown."""
    try:
        return max(0, int(group.usage.read_text()) - _cached(group.statistics.read_text(), given_up))
    except (OSError, ValueError):
        return None


def _killed(group: limits.MemoryGroup) -> int:
    """Read the count from memory.events (version 2) or memory.oom_control (version 1)."""
    for name in ("memory.events", "memory.oom_control"):
        try:
            lines = (group.source.parent / name).read_text().splitlines()
        except OSError:
            continue
        facts = dict(line.split()[:2] for line in lines if len(line.split()) >= 2)
        return int(facts.get("oom_kill", 0))
    return 0


@functools.cache
def _machine_total() -> int:
    return psutil.virtual_memory().total


def _cached(statistics: str, kinds: tuple[str, ...]) -> int:
    """Return the bytes of cached files in memory.stat of either version (v1's totals include children)."""
    facts = dict(line.split()[:2] for line in statistics.splitlines() if len(line.split()) >= 2)
    return sum(int(facts.get(f"total_{kind}", facts.get(kind, 0))) for kind in kinds)


def default_limit(host: Host) -> tuple[int, str]:
    """Return (bytes that a job may take, the rule that sets them)."""
    total, rule = host.total()
    if total >= 2 * _LEAST:
        return total // 2, f"half of {rule}"
    # Leave memory to the waiting program: when memory runs out, the kernel may kill any process.
    most = total * 3 // 4
    return (_LEAST, "what graphs take") if most >= _LEAST else (most, f"three quarters of {rule}")


def workers(host: Host) -> tuple[int, str]:
    """Return (number of jobs for which memory suffices at the same time, the limit that sets it). At least 1."""
    total, rule = host.total()
    return max(1, (total - _POOL) // _JOB), rule


def too_little(host: Host) -> bool:
    """Return whether a pool would take memory that the program needs, so that the kernel might kill either of them."""
    return host.room()[0] < _POOL + _LEAST_JOB


def warm_up_fits(host: Host) -> bool:
    """Return whether the zygote may grow for a warm-up and still leave room for a job."""
    return host.room()[0] >= _JOB


def advice(host: Host) -> str:
    """Return a message about short memory: how much is left, and what to do."""
    room, rule = host.room()
    return (
        f"not enough memory for workers: {room >> 20} MB of {host.total()[0] >> 20} MB are free ({rule}), workers need "
        f"{(_POOL + _JOB) >> 20} MB; free or add memory, or set FXPOOL_POOL=off to run without workers"
    )


def tree(pid: int) -> list[int]:
    """Return the pids of a process and its living descendants."""
    if not _LISTS_CHILDREN:
        return [pid, *_descendants(pid)]
    pids, todo = [], [pid]
    while todo:
        pid = todo.pop()
        pids.append(pid)
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                with open(f"/proc/{pid}/task/{thread}/children") as file:
                    todo += map(int, file.read().split())
            except OSError:
                continue
    return pids


def _descendants(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def at_most(pids: Iterable[int]) -> int:
    """Return an upper bound on the memory of processes in bytes: shared pages count in each. Fast."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm") as file:
                total += int(file.read().split()[1]) * _PAGE
        except (OSError, ValueError, IndexError):
            continue
    return total


def proportional(pids: Iterable[int]) -> int:
    """Return the memory of processes in bytes, with shared pages by their share. Takes milliseconds per process."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
        except (OSError, ValueError):
            total += at_most([pid])  # a kernel without the file
    return total
