"""This host's servers, without submitting jobs: lists them, queries their status and history, and ends them.

A server that answers receives `Shutdown`, and ends when its jobs are done. A server that does not answer may be stopped
or hang: it receives SIGTERM, which means the same, and SIGCONT if it was stopped. If it does not react, it is killed,
and its zygote and workers die with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fxpool.errors import ProtocolError
from fxpool.pool.host import fork_inheritance, processes, runtime_dir
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.protocol import PROTOCOL_VERSION, Channel, check_peer, encode
from fxpool.version import __version__

__all__ = [
    "PATIENCE", "Ended", "Visit", "connect", "directory_of", "disconnect", "end", "links", "shown", "status", "stop",
    "wait",
]  # fmt: skip

_SILENCE = 2.0
# Seconds for an unresponsive server to react to a signal, and for the kernel to end it.
PATIENCE = 10.0
_LOOK_SECONDS = 0.05


def links(root: Path) -> list[Path]:
    """Return the links to the sockets of this host's servers in the runtime directory `root`."""
    return sorted(root.glob("host-*.socket"))


def shown(link: Path) -> str:
    """Return the start of a server's environment digest, which names it in what people read."""
    return link.name.removeprefix("host-").removesuffix(".socket")[:12]


def directory_of(link: Path) -> Path | None:
    """Return the private directory of the server that a link points to; None if the link is gone."""
    try:
        return link.parent / os.path.dirname(os.readlink(link))
    except OSError:
        return None


def connect(directory: Path, seconds: float | None = _SILENCE, *, visitor: bool = False) -> socket.socket:
    """Connect to the server of a private directory, and send Hello. The socket has this time limit.

    A `visitor` submits no jobs and does not keep the server alive. A forked child closes its copy of the socket; this
    process closes it by `disconnect`. Raises OSError, ProtocolError.
    """
    sock = fork_inheritance.unix_socket()
    fork_inheritance.sockets.add(sock)
    try:
        sock.settimeout(seconds)  # the accept queue of a hung server may be full
        # Not through a link, whose path may be too long for a socket address.
        sock.connect(str(directory / runtime_dir.SOCKET))
        check_peer(sock, os.getuid())
        hello = m.Hello(protocol=PROTOCOL_VERSION, fxpool=__version__, pid=os.getpid(), visitor=visitor)
        for part in encode(hello):
            sock.sendall(part)
    except BaseException:
        disconnect(sock)
        raise
    return sock


def disconnect(sock: socket.socket) -> None:
    """Close a socket of `connect`."""
    fork_inheritance.sockets.discard(sock)
    sock.close()


class _RefusedError(ProtocolError):
    """The server refused the connection."""


class Visit:
    """A connection for queries, which does not keep the server alive. Not thread-safe.

    Every method raises TimeoutError if the server does not answer, and OSError or ProtocolError if it is gone or
    refuses the connection.
    """

    def __init__(self, link: Path) -> None:
        directory = link.parent / os.path.dirname(os.readlink(link))
        self._channel: Channel[m.ToClient] = Channel(connect(directory, visitor=True), m.ToClient)

    def status(self) -> dict[str, Any]:
        """Return the server's status."""
        self._channel.send(m.StatusQuery(number=1))
        while True:
            if isinstance(message := self._received(), m.Status):
                return message.facts

    def history(self, since: int = 0) -> m.History:
        """Return the jobs that changed after the change numbered `since`."""
        self._channel.send(m.HistoryQuery(number=1, since=since))
        while True:
            if isinstance(message := self._received(), m.History):
                return message

    def shut_down(self) -> None:
        """Tell the server to accept no new clients and to end when its jobs are done."""
        self._channel.send(m.Shutdown())
        self.status()  # the reply proves that it has read the message before

    def _received(self) -> m.ToClient:
        frame = self._channel.receive()
        if frame is None:
            raise ConnectionResetError("the server ended")
        if isinstance(frame[0], m.Refused):
            raise _RefusedError(frame[0].reason)
        return frame[0]

    def close(self) -> None:
        disconnect(self._channel.sock)


def status(link: Path) -> dict[str, Any]:
    """Return a server's status; {"state": "gone"} if it does not exist, {"state": "silent"} if it hangs."""
    try:
        with contextlib.closing(Visit(link)) as visit:
            return visit.status()
    except TimeoutError:
        return {"state": "silent"}
    except _RefusedError as error:
        return {"state": "refused", "reason": error.message}
    except (OSError, ProtocolError):
        return {"state": "gone"}


def stop(link: Path) -> bool:
    """Tell a server to accept no new clients and to end when its jobs are done; return whether it received that."""
    try:
        with contextlib.closing(Visit(link)) as visit:
            visit.shut_down()
    except (OSError, ProtocolError):
        return False
    return True


# ---------------------------------------------------------------- servers that do not answer


@dataclass(frozen=True)
class Ended:
    """The `result` of `end`: ``told``, ``killed``, ``gone`` (it had ended before) or ``failed``.

    `detail` is a sentence for the user; empty if the server answered.
    """

    result: str
    pid: int | None = None
    detail: str = ""


def end(link: Path, patience: float = PATIENCE) -> Ended:
    """End the server that a link points to. Takes up to twice `patience` (seconds) if the server does not answer."""
    # Send Shutdown only if the server answers. Otherwise SIGTERM would be a second request, at which it ends at once
    # and loses its jobs.
    if status(link)["state"] == "running" and stop(link):
        return Ended("told")
    directory = directory_of(link)
    if directory is None:
        return Ended("gone")  # the server has just removed its link
    pid = runtime_dir.holder(directory)
    if pid is None:
        return _remove_leftovers(link, directory)
    try:
        process = os.pidfd_open(pid)
    except OSError as error:
        return Ended("failed", pid, f"server {pid} does not answer and cannot be signalled: {error.strerror}")
    try:
        if runtime_dir.holder(directory) != pid or not runtime_dir.is_server_of(pid, directory):
            said = f"the server of {directory} does not answer; it may run in another container (not process {pid})"
            return Ended("failed", pid, said)
        return _by_signals(link, directory, pid, process, patience)
    except OSError as error:
        return Ended("failed", pid, f"server {pid} does not answer and cannot be ended: {error.strerror}")
    finally:
        os.close(process)


def wait(directory: Path) -> None:
    """Wait until a server that was told to end has ended: its jobs may take up to `job_timeout`."""
    while runtime_dir.holder(directory) is not None:
        time.sleep(_LOOK_SECONDS)


def _by_signals(link: Path, directory: Path, pid: int, process: int, patience: float) -> Ended:
    stopped = processes.is_stopped(pid)
    signal.pidfd_send_signal(process, signal.SIGTERM)
    if stopped:
        signal.pidfd_send_signal(process, signal.SIGCONT)

    def is_gone() -> bool:
        return runtime_dir.holder(directory) is None

    if _until(lambda: is_gone() or (directory / runtime_dir.LEAVING).exists(), patience):
        was = "was stopped" if stopped else "did not answer"
        return Ended("told", pid, f"server {pid} {was}; it received SIGTERM and ends once its jobs are done")
    signal.pidfd_send_signal(process, signal.SIGKILL)
    if not _until(is_gone, patience):
        return Ended("failed", pid, f"server {pid} does not answer and is still there after SIGKILL")
    _remove_leftovers(link, directory)
    return Ended("killed", pid, f"server {pid} did not answer for {patience:g} s and was killed with its workers")


def _remove_leftovers(link: Path, directory: Path) -> Ended:
    """Remove the files of a killed server, unless a process holds its directory."""
    try:
        lock = runtime_dir.hold(directory)
    except FileNotFoundError:
        lock = -1  # the directory is gone too
    except OSError:
        return Ended("gone")
    with contextlib.suppress(OSError):
        if os.path.dirname(os.readlink(link)) == directory.name:
            os.unlink(link)
    if lock >= 0:
        runtime_dir.remove(directory)
        os.close(lock)
    return Ended("gone")


def _until(holds: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
