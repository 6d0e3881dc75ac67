"""Linux process control for the pool: death signals, adoption of orphans, killing groups.

Every worker leads a process group, so that its compilers die with it. While a worker lives, it adopts its own orphans.
When it dies, the zygote (a child subreaper) adopts the processes that left the group and kills them: a child that the
zygote does not know always belonged to a dead worker.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import time
from pathlib import Path

__all__ = [
    "MARK",
    "adopt_orphans",
    "children",
    "cores_free",
    "die_with_parent",
    "interpreter",
    "is_stopped",
    "kill_group",
    "kill_marked",
    "marked",
    "name_process",
    "reap_strays",
    "signal_group",
    "start_time",
]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

#: The variable that marks a process and all its descendants, to find and kill them later. A stopped process does not
#: notice that its parent died, and one that left its session has lost its parent; the mark still identifies both. The
#: host's server carries no mark, because other processes use it too. The name begins with an underscore: variables that
#: begin with FXPOOL_ are settings.
MARK = "_FXPOOL_MARK"
_KILL_SECONDS = 5.0

_libc = ctypes.CDLL(None, use_errno=True)


def cores_free() -> int:
    """Return how many of this process's cores run no other process right now; 0 if the kernel does not say."""
    try:
        with open("/proc/stat", "rb") as file:
            words = file.read().partition(b"procs_running ")[2].split(None, 1)
        others = int(words[0]) - 1  # of the whole host: this process is one of them
    except (OSError, ValueError, IndexError):
        return 0
    return max(0, len(os.sched_getaffinity(0)) - others)


def interpreter() -> str:
    """Return the path of this Python.

    Raises:
        FileNotFoundError: a program embeds Python and has not set `sys.executable`.
    """
    if not sys.executable:
        raise FileNotFoundError(errno.ENOENT, "sys.executable does not name a Python interpreter")
    return sys.executable


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def die_with_parent(signum: int, parent: int) -> None:
    """Have the kernel send `signum` to this process when the thread that started it ends; exit now if it already has.

    Use it only if the starting thread lives as long as its process, as the main threads of server and zygote do.
    """
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        os._exit(0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent died."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def name_process(name: str) -> None:
    """Set the name that ps and top show (15 characters)."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    _libc.prctl(_PR_SET_NAME, buffer, 0, 0, 0)


def is_stopped(pid: int) -> bool:
    """Return whether a process is held by SIGSTOP or a debugger."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The process name before it may hold anything, parentheses too.
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


def start_time(pid: int) -> bytes | None:
    """Return when a process started, in the kernel's clock ticks; None if it has ended. Raises OSError.

    With the pid, it identifies the process: pids are used again.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19]


def signal_group(leader: int, signum: signal.Signals) -> None:
    """Send a signal to the process group of a worker that has not been reaped: its number cannot have been reused."""
    try:
        os.killpg(leader, signum)
    except (ProcessLookupError, PermissionError):
        pass


def kill_group(leader: int) -> None:
    """Send SIGKILL to the process group of a worker that has not been reaped."""
    signal_group(leader, signal.SIGKILL)


def children() -> list[int]:
    """Return the pids of this process's children, zombies included; [] if it is out of descriptors."""
    pid = os.getpid()
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:  # microseconds; not in every kernel
            return [int(word) for word in file.read().split()]
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return []  # the caller looks again when the next child ends
        import psutil  # takes 0.02 s, and only such kernels need it

        return [child.pid for child in psutil.Process(pid).children()]


def reap_strays(own: set[int], seconds: float = 0.0) -> bool:
    """Kill and reap every child except `own`, and the children that this process adopts from them.

    Tries for `seconds`; returns whether all of them have ended.
    """
    deadline = time.monotonic() + seconds
    while True:
        strays = [pid for pid in children() if pid not in own]
        if not strays:
            return True
        for pid in strays:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError, PermissionError):
                pass
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.002)


def marked(mark: str) -> list[int]:
    """Return the pids of all processes with this mark except this process. Zombies have no environment."""
    wanted = f"{MARK}={mark}".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
        except OSError:
            continue
    return pids


def kill_marked(mark: str) -> None:
    """Kill all processes with this mark, and those that they start during the call, for at most 5 s."""
    end = time.monotonic() + _KILL_SECONDS
    while (pids := marked(mark)) and time.monotonic() < end:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        time.sleep(0.05)
