"""Sockets, children and locks that a forked child must not keep, unless it calls exec.

A server treats the closing of a client's socket as the client's death, and a lock is held while any process has its
file open. So everything that is registered here is closed in a forked child.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess

__all__ = ["descriptors", "processes", "sockets", "unix_socket"]

_LAST_STREAM = 2

sockets: set[socket.socket] = set()
processes: set[subprocess.Popen[bytes]] = set()
descriptors: set[int] = set()


def unix_socket() -> socket.socket:
    """Return a new Unix socket whose descriptor is not that of a standard stream.

    In a program that closed its standard streams, new descriptors get their numbers. The program's output would then go
    to the server, and a child's standard streams would replace the descriptors that it should inherit.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if made.fileno() > _LAST_STREAM:
        return made
    with made:
        return socket.socket(fileno=fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, _LAST_STREAM + 1))


def _after_fork() -> None:
    for sock in list(sockets):
        sock.close()  # this process's copy; the connection is the parent's
    sockets.clear()
    for process in processes:
        process.returncode = 0  # not our child: nothing to wait for
    processes.clear()
    for descriptor in descriptors:
        os.close(descriptor)
    descriptors.clear()


os.register_at_fork(after_in_child=_after_fork)
