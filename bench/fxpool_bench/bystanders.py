"""Processes that are no workers, and stand still like them while others on this host measure.

A program that runs many at once (a suite's runner, pytest's controller) offers to stop its own: it listens where a
server would, and understands a server's Hello and Pause. What measures may be one of them: it goes on.
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
from fxpool.pool.host import inherited, runtime_dir
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.protocol import HANDSHAKE_CAP, PROTOCOL_VERSION, Channel, check_peer
from fxpool.version import __version__

__all__ = ["Bystanders", "signal_tree", "tree"]

# Rounds in which processes are looked for that others started while they were being stopped.
_ROUNDS = 5


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and all that it started, in whatever session: compilers, Inductor's own workers."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def signal_tree(pid: int, number: signal.Signals) -> int:
    """Send a signal to a process and to all that it started; return how many there were.

    Those that were started meanwhile are found by looking until there are no others. SIGCONT comes to the process
    itself last: what it waits for goes on before.
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
    """Stops processes while others measure. `processes` returns those to stop, at that moment, each with all that it
    started; `on_change` is called in a thread with each that was stopped (True) or is to go on (False).

    Raises PoolUnavailableError and OSError: it can't listen under the runtime directory `root`.
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
        inherited.descriptors.add(self._held)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        inherited.sockets.add(self._listener)
        self._listener.bind(str(self._directory / runtime_dir.SOCKET))
        self._listener.listen(16)
        self._thread = threading.Thread(target=self._accept, name="fxpool bystanders", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let all go on, and stop listening."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._measuring.clear()
            self._go_on()
        inherited.sockets.discard(self._listener)
        self._listener.close()
        inherited.descriptors.discard(self._held)
        os.close(self._held)
        runtime_dir.remove(self._directory)

    def came(self, pid: int) -> None:
        """Stop a process that was started just now, if somebody measures."""
        with self._lock:
            if self._measuring:
                self._stop(pid)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._open.add(sock)
            inherited.sockets.add(sock)
            threading.Thread(target=self._serve, args=[sock], name="fxpool bystanders' guest", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        """Stop everything from a client's Pause to the end of its connection, or for as long as it asked for."""
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
                        channel.send(m.GoneOn())
                        sock.settimeout(None)
                else:
                    break
        self._end(pid)
        self._open.discard(sock)
        inherited.sockets.discard(sock)
        channel.close()

    def _begin(self, pid: int) -> int:
        with self._lock:
            self._measuring.append(pid)
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
                    self._go_on()

    def _go_on(self) -> None:
        for pid in self._stopped:
            self._on_change(pid, False)  # before: whoever is said to be stopped is
            signal_tree(pid, signal.SIGCONT)
        self._stopped.clear()
