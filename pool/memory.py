"""How much memory jobs take and the host has: what the limits are compared with.

Of a job counts its proportional set size: pages that it shares with the zygote count by their share, those it shares
with the compilers it started count once. Its processes are its worker, those of its sub-jobs, and all their children.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from fxpool.pool import limits

__all__ = ["Host", "at_most", "default_limit", "proportional", "tree"]

_PAGE = os.sysconf("SC_PAGE_SIZE")
# Not every kernel does.
_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
# A limit below this would meet ordinary graphs.
_LEAST = 4 << 30


@dataclass(frozen=True)
class Host:
    """The memory this process may use: the machine's, or that of the tightest cgroup."""

    groups: tuple[limits.MemoryGroup, ...]

    @staticmethod
    def look(proc: str | Path = "/proc/self") -> Host:
        return Host(tuple(limits.memory_groups(proc)))

    def total(self) -> tuple[int, str]:
        """(bytes, what set the number)"""
        machine = (_machine_total(), "the machine's memory")
        return min([machine, *((group.limit, f"the memory limit in {group.source}") for group in self.groups)])

    def used(self) -> tuple[float, str]:
        """(the part of it that is in use and can't be had back, of what): of the tightest, 0.0 to 1.0.

        Files that are cached count as free: the kernel gives them up first. 0.0 of nothing where no file says so, as
        in a process that has no descriptor left.
        """
        found = []
        try:
            machine = psutil.virtual_memory()
            found.append((1.0 - machine.available / machine.total, "the machine's memory"))
        except OSError:
            pass
        for group in self.groups:
            try:
                used = int(group.usage.read_text()) - _cached(group.statistics.read_text())
            except (OSError, ValueError):
                continue
            found.append((max(0, used) / group.limit, f"the memory limit in {group.source}"))
        return max(found, default=(0.0, "nothing"))


@functools.cache
def _machine_total() -> int:
    return psutil.virtual_memory().total


def _cached(statistics: str) -> int:
    """Bytes of cached files nobody looked at lately (memory.stat of either version; v1's totals are with children)."""
    facts = dict(line.split()[:2] for line in statistics.splitlines() if len(line.split()) >= 2)
    return int(facts.get("total_inactive_file", facts.get("inactive_file", 0)))


def default_limit(host: Host) -> tuple[int, str]:
    """(bytes one job may take, what set that)."""
    total, rule = host.total()
    return max(total // 2, min(total, _LEAST)), f"half of {rule}" if total >= 2 * _LEAST else rule


def tree(pid: int) -> list[int]:
    """A process and all that descend from it, as far as they live."""
    if not _LISTS_CHILDREN:
        return [pid, *_descendants(pid)]
    found, todo = [], [pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
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
    return found


def _descendants(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def at_most(pids: Iterable[int]) -> int:
    """Bytes that processes certainly do not exceed together; quick."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm") as file:
                total += int(file.read().split()[1]) * _PAGE
        except (OSError, ValueError, IndexError):
            continue
    return total


def proportional(pids: Iterable[int]) -> int:
    """Bytes that processes take, a page of several counting by its share. Takes milliseconds for each."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
        except (OSError, ValueError):
            total += at_most([pid])  # a kernel without the file
    return total
