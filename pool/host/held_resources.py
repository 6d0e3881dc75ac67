"""Threads, children and descriptors of this process: those of fxpool, and others that a checkpoint may refuse.

Reads /proc. A thread, child or descriptor may end while this module looks; it is then left out.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from fxpool.pool.host import fork_inheritance

__all__ = ["Held", "held", "is_ours", "mapped_below"]

_THREAD = "fxpool"
_MODULE = re.compile(rb"\bfxpool\.(pool|farm|lowering)\b")
# Threads of libraries that work for fxpool only, by the name that the kernel knows: obstore's, for S3.
_OF_LIBRARIES = re.compile(r"tokio-|obstore")
#: Files that every checkpoint can restore.
_HARMLESS_FILES = re.compile(
    r"pipe:|anon_inode:\[?(eventfd|eventpoll|timerfd|signalfd|inotify)\]?|/dev/(null|zero|full|u?random|tty|pts/)"
)
_SPECIAL = re.compile(r"socket:|anon_inode:|/dev/|/memfd:|.* \(deleted\)$")


@dataclass
class Held:
    """Parts of a process as text: names of threads, pids and commands of children, numbers and targets."""

    threads: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    descriptors: list[str] = field(default_factory=list)


def is_ours(thread: threading.Thread) -> bool:
    """Return whether fxpool started a thread."""
    return thread.name.startswith(_THREAD)


def held(directories: Iterable[str] = ()) -> tuple[Held, Held]:
    """Return what fxpool holds in this process, and what others do. `directories` are fxpool's."""
    ours, others = Held(), Held()
    _add_threads(ours, others)
    _add_children(ours, others)
    _add_descriptors(ours, others, tuple(os.path.join(one, "") for one in directories))
    return ours, others


def mapped_below(directories: Iterable[str]) -> list[str]:
    """Return the files below some directories that this process has mapped."""
    tops = tuple(os.path.join(os.path.realpath(one), "") for one in directories)
    paths = set()
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            path = line.rstrip("\n").split(maxsplit=5)[5:]
            if path and path[0].startswith(tops):
                paths.add(path[0])
    return sorted(paths)


def _add_threads(ours: Held, others: Held) -> None:
    seen = set()
    for thread in threading.enumerate():
        seen.add(thread.native_id)
        if is_ours(thread):
            ours.threads.append(thread.name)
        elif thread is not threading.main_thread() and thread is not threading.current_thread():
            others.threads.append(thread.name)
    for number in os.listdir("/proc/self/task"):
        if int(number) not in seen and int(number) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/self/task/{number}/comm") as file:
                name = file.read().strip()
                (ours if _OF_LIBRARIES.match(name) else others).threads.append(name)


def _add_children(ours: Held, others: Held) -> None:
    from fxpool.pool.host import memory  # imports psutil

    known = {process.pid for process in fork_inheritance.processes if process.poll() is None}
    for pid in memory.tree(os.getpid())[1:]:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read()
            mine = pid in known or _MODULE.search(command)
            (ours if mine else others).children.append(f"{pid} {_shown(command)}")


def _shown(command: bytes) -> str:
    return os.fsdecode(command.rstrip(b"\0").replace(b"\0", b" "))[:200] or "(ended, not waited for)"


def _add_descriptors(ours: Held, others: Held, tops: tuple[str, ...]) -> None:
    known = {sock.fileno() for sock in fork_inheritance.sockets} | fork_inheritance.descriptors
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if number in known or (tops and target.startswith(tops)):
            ours.descriptors.append(f"{number} {target}")
        elif _SPECIAL.match(target) and not _HARMLESS_FILES.match(target):
            others.descriptors.append(f"{number} {target}")
