"""The server's clients: accepts connections, greets clients of this version, and notices when they leave.

A client has one descriptor: its socket. A child that it forked without Python's fork hooks keeps that socket open, so
the process is looked at as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from typing import Protocol

from fxpool.errors import ProtocolError
from fxpool.pool.host import limits, processes
from fxpool.pool.server.results import Client
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.connection import Connection
from fxpool.pool.wire.protocol import HANDSHAKE_CAP, PAYLOAD_CAP, PROTOCOL_VERSION, check_peer
from fxpool.version import __version__

__all__ = ["HANDSHAKE_SECONDS", "Clients", "Host"]

HANDSHAKE_SECONDS = 10.0
# Bytes that a client may leave unread. Above that, log records are dropped, and no frame of the client is read.
_OUTBOX_CAP = 64 << 20
# Seconds between two looks at the clients' processes, and before the next connection if one could not be accepted.
_LOOK_SECONDS, _FULL_SECONDS = 2.0, 0.5

log = logging.getLogger(__name__)


class Host(Protocol):
    """Serves the clients. Implemented by the server."""

    def on_greeted(self, client: Client) -> None: ...
    def on_message(self, client: Client, message: m.ToServer, payload: memoryview) -> None: ...
    def on_left(self, client: Client) -> None: ...


class Clients:
    """The connections of a listening socket, which stays the caller's."""

    def __init__(self, listener: socket.socket, host: Host) -> None:
        self._listener, self._host = listener, host
        self._loop = asyncio.get_running_loop()
        self._clients: dict[int, Client] = {}
        self._numbers = 0
        self._open = True
        self._look_timer: asyncio.TimerHandle | None = None
        listener.setblocking(False)

    def greeted(self) -> list[Client]:
        """Return the clients that have sent a valid Hello."""
        return [client for client in self._clients.values() if client.greeted]

    def listen(self) -> None:
        """Accept connections, until `accept_no_more`."""
        if self._open:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def accept_no_more(self) -> None:
        """Leave new connections to another server."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._listener.fileno())

    def close(self) -> None:
        """Close all connections."""
        if self._look_timer is not None:
            self._look_timer.cancel()
        for client in list(self._clients.values()):
            client.connection.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        except OSError as error:
            # Out of descriptors, say: the listener stays readable, so stop watching it for a moment.
            log.error("cannot accept a connection: %s", error)
            self._loop.remove_reader(self._listener.fileno())
            self._loop.call_later(_FULL_SECONDS, self.listen)
            return
        try:
            pid = check_peer(sock, os.getuid())
        except (ProtocolError, OSError) as error:
            log.warning("refused a connection: %s", error)
            sock.close()
            return
        self._numbers += 1
        client: Client

        def on_frame(message: m.ToServer, payload: memoryview) -> None:
            if client.greeted:
                self._host.on_message(client, message, payload)
            else:
                self._greet(client, message)

        def on_end(error: Exception | None) -> None:
            self._left(client, error)

        connection: Connection[m.ToServer]
        connection = Connection(sock, m.ToServer, on_frame, on_end, cap=HANDSHAKE_CAP, outbox_cap=_OUTBOX_CAP)
        client = Client(connection, self._numbers, pid)
        self._clients[client.number] = client
        client.timer = self._loop.call_later(HANDSHAKE_SECONDS, self._drop, client, "it did not send a Hello")

    def _greet(self, client: Client, message: m.ToServer) -> None:
        if not isinstance(message, m.Hello):
            raise ProtocolError(f"a client's first message is Hello, not {type(message).__name__}")
        ours = (PROTOCOL_VERSION, __version__)
        if (message.protocol, message.fxpool) != ours:
            reason = (
                f"the server runs fxpool {ours[1]} (protocol {ours[0]}), "
                f"the client fxpool {message.fxpool} (protocol {message.protocol})"
            )
            raise ProtocolError(reason)
        if limits.descriptors_are_short():
            raise ProtocolError(f"it has {len(self._clients)} clients and no file descriptors for more")
        client.greeted, client.visitor = True, message.visitor
        assert client.timer is not None
        client.timer.cancel()
        client.connection.raise_cap(PAYLOAD_CAP)
        if client.pid > 0:
            with contextlib.suppress(OSError):
                client.started = processes.start_time(client.pid)
        if self._look_timer is None:
            self._look_timer = self._loop.call_later(_LOOK_SECONDS, self._look)
        self._host.on_greeted(client)

    def _look(self) -> None:
        """Drop the clients whose process has ended."""
        self._look_timer = None
        for client in self.greeted():
            with contextlib.suppress(OSError):  # no descriptor is left: at the next look
                if client.started is not None and processes.start_time(client.pid) != client.started:
                    self._drop(client, None)
        if self.greeted():
            self._look_timer = self._loop.call_later(_LOOK_SECONDS, self._look)

    def _drop(self, client: Client, reason: str | None) -> None:
        self._left(client, ProtocolError(reason) if reason else None)
        client.connection.close(after_sending=True)

    def _left(self, client: Client, error: Exception | None) -> None:
        if self._clients.pop(client.number, None) is None:
            return
        if error is not None:
            log.warning("closed the connection of process %d: %s", client.pid, error)
            if not client.greeted:
                client.connection.send(m.Refused(reason=str(error)))
        if client.timer is not None:
            client.timer.cancel()
        self._host.on_left(client)
