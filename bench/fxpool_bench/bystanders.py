"""Suspends processes other than workers while another process on this host measures.

A program that runs several processes (a suite's runner, pytest's controller) can have them suspended: it listens on a
socket like a server's, and understands Hello and Pause. A process that measures is not suspended itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from fxpool import forks
from fxpool.errors import ProtocolError
from fxpool.pool.host import fork_inheritance, runtime_dir
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.protocol import HANDSHAKE_CAP, PROTOCOL_VERSION, Channel, check_peer
from fxpool.version import __version__

__all__ = ["Bystanders", "signal_tree", "tree"]

# Rounds of searching for processes that were started while others were being stopped.
_ROUNDS = 5


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants, in any session: compilers, Inductor's workers."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def signal_tree(pid: int, number: signal.Signals) -> int:
    """Send a signal to a process and all its descendants; return their number.

    The search is repeated until it finds no new process. SIGCONT is sent to the process itself last, so that the
    processes that it waits for continue first.
    """
    reached: set[int] = set()
    for _ in range(_ROUNDS):
        found = [one for one in tree(pid) if one.pid not in reached]
        if not found:
            break
        for one in reversed(found) if number == signal.SIGCONT else found:
            reached.add(one.pid)
            with contextlib.suppress(psutil.Error):
                one.send_signal(number)
    return len(reached)


class Bystanders:
    """Suspends processes while others measure.

    `processes` returns the current processes to suspend; their descendants are suspended with them. `on_change` is
    called in a thread for each process after it was suspended (True) and before it is resumed (False).

    Raises PoolUnavailableError and OSError if it cannot listen in the runtime directory `root`.
    """

    def __init__(
        self,
        root: Path,
        processes: Callable[[], Iterable[int]],
        on_change: Callable[[int, bool], None] = lambda pid, stopped: None,
    ) -> None:
        self._processes, self._on_change = processes, on_change
        self._lock = forks.lock(self, "_lock")
        self._measuring: list[int] = []
        self._stopped: set[int] = set()
        self._open: set[socket.socket] = set()
        self._directory = runtime_dir.make_private(root)
        self._held = runtime_dir.hold(self._directory)
        fork_inheritance.descriptors.add(self._held)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        fork_inheritance.sockets.add(self._listener)
        self._listener.bind(str(self._directory / runtime_dir.SOCKET))
        self._listener.listen(16)
        self._thread = threading.Thread(target=self._accept, name="fxpool bystanders", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Resume all processes, and stop listening."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._measuring.clear()
            self._go_on(self._stopped)
        fork_inheritance.sockets.discard(self._listener)
        self._listener.close()
        fork_inheritance.descriptors.discard(self._held)
        os.close(self._held)
        runtime_dir.remove(self._directory)

    def came(self, pid: int) -> None:
        """Suspend a process that has just been started, if a measurement is under way."""
        with self._lock:
            if self._measuring:
                self._stop(pid)

    def spare(self, pid: int) -> None:
        """Resume one of the processes: it is to measure, beside those that measure on other devices."""
        with self._lock:
            self._go_on({pid} & self._stopped)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._open.add(sock)
            fork_inheritance.sockets.add(sock)
            threading.Thread(target=self._serve, args=[sock], name="fxpool bystanders' guest", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        """Suspend all processes from a client's Pause until its connection or the requested time ends."""
        pid = -1
        channel: Channel[m.ToServer] = Channel(sock, m.ToServer, cap=HANDSHAKE_CAP)
        with contextlib.suppress(OSError, ProtocolError):
            pid = check_peer(sock, os.getuid())
            while (frame := channel.receive()) is not None:
                if isinstance(frame[0], m.Hello):
                    channel.send(m.Welcome(protocol=PROTOCOL_VERSION, fxpool=__version__, pid=os.getpid(), slots=0))
                elif isinstance(frame[0], m.Pause):
                    channel.send(m.Paused(workers=self._begin(pid)))
                    sock.settimeout(frame[0].seconds)
                    try:
                        channel.receive()
                    except TimeoutError:
                        self._end(pid)
                        channel.send(m.Resumed())
                        sock.settimeout(None)
                else:
                    break
        self._end(pid)
        self._open.discard(sock)
        fork_inheritance.sockets.discard(sock)
        channel.close()

    def _begin(self, pid: int) -> int:
        with self._lock:
            self._measuring.append(pid)
            # It may have been stopped with its Pause on its way: only this request can resume it.
            self._go_on({one for one in self._stopped if any(process.pid == pid for process in tree(one))})
            for one in self._processes():
                self._stop(one)
            return len(self._stopped)

    def _stop(self, pid: int) -> None:
        going_on = set(self._measuring)
        if pid not in self._stopped and not any(one.pid in going_on for one in tree(pid)):
            self._stopped.add(pid)
            signal_tree(pid, signal.SIGSTOP)
            self._on_change(pid, True)

    def _end(self, pid: int) -> None:
        with self._lock:
            if pid in self._measuring:
                self._measuring.remove(pid)
                if not self._measuring:
                    self._go_on(self._stopped)

    def _go_on(self, stopped: set[int]) -> None:
        for pid in stopped:
            self._on_change(pid, False)  # before SIGCONT, so that a process reported as stopped is stopped
            signal_tree(pid, signal.SIGCONT)
        self._stopped -= stopped
