"""Sockets, children and locks of this process that a child forked by other means than exec must not keep.

A server takes the end of a client's socket for the client's death, and a lock is held while any process has its file
open. So whatever is registered here is closed in a forked child.
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
    """Make a socket whose number is not that of a standard stream.

    In a program with closed streams the next descriptors get their numbers: what the program prints would go to the
    server, and a child's own streams would take the place of what it is to inherit.
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
