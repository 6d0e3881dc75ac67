"""The server's connection to the zygote: starts the process, sends orders, and reports its messages and its end."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
from collections import deque
from typing import Protocol

import msgspec

from fxpool.pool.host import processes
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.config import PoolConfig
from fxpool.pool.wire.protocol import PROTOCOL_VERSION

__all__ = ["Listener", "ZygoteLink"]

_PACKET = 128 << 10
# A zygote that is suspended although it has an order to fork or kill is replaced after `PoolConfig.patience`, and one
# that does not fork after `_SILENT_SECONDS`, as it may be in an idle call. A zygote that does not report a worker's end
# is not replaced: the kernel may keep a process as long as a disk hangs.
_SILENT_SECONDS = 60.0
# The kernel has no memory for a message or an attached descriptor: try again after `_FULL_SECONDS`.
_FULL = (errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS)
_FULL_SECONDS = 0.05
_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[m.FromZygote] = msgspec.msgpack.Decoder(m.FromZygote)


class Listener(Protocol):
    """Receives the zygote's messages. Implemented by the server."""

    @property
    def config(self) -> PoolConfig: ...
    def on_prepared(self, message: m.Prepared) -> None: ...
    def on_forked(self, message: m.Forked) -> None: ...
    def on_exited(self, message: m.Exited) -> None: ...
    def on_suspended(self) -> None: ...
    def on_zygote_end(self, zygote: ZygoteLink, reason: str) -> None: ...


class ZygoteLink:
    """One zygote process, from its start to its end. Raises OSError if it can't be started."""

    def __init__(self, listener: Listener, order: m.Prepare) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._outgoing: deque[tuple[bytes, socket.socket | None]] = deque()
        self._over = False
        self._owed: dict[int, tuple[type[m.ToZygote], float]] = {}  # (unanswered order, its time) by worker
        self._watch: asyncio.TimerHandle | None = None
        self._later: asyncio.TimerHandle | None = None
        self.ready = False
        self.late = False
        self.silent = False
        self.code = 0  # exit code; negative: the signal
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [processes.interpreter(), "-m", "fxpool.pool.worker.zygote"]
                    + [str(number) for number in (theirs.fileno(), os.getpid(), PROTOCOL_VERSION)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                )
            except OSError:
                self._sock.close()
                raise
        self._sock.setblocking(False)
        self._loop.add_reader(self._sock.fileno(), self._readable)
        self._deadline = self._loop.call_later(listener.config.start_timeout, self._too_late)
        self.send(order)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: m.ToZygote, attached: socket.socket | None = None) -> None:
        """Send an order. Takes ownership of `attached`: this process's copy is closed after it is sent."""
        if self._over:
            if attached is not None:
                attached.close()
            return
        if isinstance(message, (m.Fork, m.Kill)):
            self._owed[message.worker] = type(message), self._loop.time()
            self._keep_watch()
        self._outgoing.append((_encode(message), attached))
        if len(self._outgoing) == 1:
            self._writable()

    def poll(self) -> None:
        """Check whether the zygote has ended, and handle that."""
        if not self._over and self._process.poll() is not None:
            self._end()

    async def stop(self, seconds: float) -> None:
        """End the zygote with all its workers; kill it after `seconds`."""
        self._close()
        self._process.terminate()  # a preload in progress does not read its socket
        deadline = self._loop.time() + seconds
        while self._process.poll() is None:
            if self._loop.time() > deadline:
                self._process.kill()
                self._process.wait()
                return
            await asyncio.sleep(0.002)

    def _too_late(self) -> None:
        self.late = True
        self._process.kill()

    def _keep_watch(self) -> None:
        if self._watch is None and self._owed:
            self._watch = self._loop.call_later(min(1.0, self._listener.config.patience / 2), self._look)

    def _look(self) -> None:
        self._watch = None
        # Only if it is ready: the preload has its own time limit.
        now = self._loop.time()
        waited = max((now - since for _, since in self._owed.values()), default=0.0)
        to_fork = max((now - since for order, since in self._owed.values() if order is m.Fork), default=0.0)
        stopped = waited > self._listener.config.patience and processes.is_stopped(self.pid)
        if self.ready and (stopped or to_fork > _SILENT_SECONDS):
            self.silent = True
            self._process.kill()
        else:
            self._keep_watch()

    def _writable(self) -> None:
        while self._outgoing:
            data, attached = self._outgoing[0]
            try:
                socket.send_fds(self._sock, [data], [attached.fileno()] if attached is not None else [])
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._sock.fileno(), self._writable)
                return
            except OSError as error:
                if error.errno not in _FULL:
                    break  # the zygote is gone; the reader notices
                self._loop.remove_writer(self._sock.fileno())
                self._later = self._loop.call_later(_FULL_SECONDS, self._writable)
                return
            self._outgoing.popleft()
            if attached is not None:
                attached.close()
        self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        while not self._over:
            try:
                packet = self._sock.recv(_PACKET)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                packet = b""
            if not packet:
                return self._end()
            message = _decoder.decode(packet)
            if isinstance(message, m.Prepared):
                self._deadline.cancel()
                self.ready = True
                self._listener.on_prepared(message)
            elif isinstance(message, m.Suspended):
                self._listener.on_suspended()
            elif isinstance(message, m.Deferred):
                self._owed.pop(message.worker, None)
            else:
                self._of_a_worker(message)

    def _of_a_worker(self, message: m.Forked | m.Exited) -> None:
        order, _ = self._owed.get(message.worker, (m.Fork, 0.0))
        if order is m.Fork or isinstance(message, m.Exited):
            self._owed.pop(message.worker, None)
        if isinstance(message, m.Forked):
            self._listener.on_forked(message)
        else:
            self._listener.on_exited(message)

    def _close(self) -> None:
        if not self._over:
            self._over = True
            self._deadline.cancel()
            if self._watch is not None:
                self._watch.cancel()
            if self._later is not None:
                self._later.cancel()
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
            for _, attached in self._outgoing:
                if attached is not None:
                    attached.close()
            self._outgoing.clear()

    def _end(self) -> None:
        if self._over:
            return
        if self._process.poll() is not None:
            # Handle the messages that it sent before it died.
            self._drain()
        self._close()
        self._process.kill()  # a zygote without its socket is useless
        code = self.code = self._process.wait()
        if self.late:
            how = "did not finish its preload in time and was killed"
        elif self.silent:
            how = "did not carry out an order in time and was killed"
        elif code < 0:
            how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
        else:
            how = f"exited with code {code}"
        self._listener.on_zygote_end(self, f"the zygote (process {self.pid}) {how}")

    def _drain(self) -> None:
        while True:
            try:
                packet = self._sock.recv(_PACKET)
            except OSError:
                return
            if not packet:
                return
            message = _decoder.decode(packet)
            if not isinstance(message, (m.Prepared, m.Suspended, m.Deferred)):
                self._of_a_worker(message)
