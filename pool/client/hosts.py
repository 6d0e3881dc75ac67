"""Lists this host's servers, queries their status and tells them to end, without submitting jobs."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fxpool.errors import ProtocolError
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.protocol import PROTOCOL_VERSION, Channel, Message, check_peer
from fxpool.version import __version__

__all__ = ["Visit", "links", "shown", "status", "stop"]

_SILENCE = 2.0


def links(root: Path) -> list[Path]:
    """Return the links to the sockets of this host's servers in the runtime directory `root`."""
    return sorted(root.glob("host-*.socket"))


def shown(link: Path) -> str:
    """Return the start of a server's environment digest, which names it in what people read."""
    return link.name.removeprefix("host-").removesuffix(".socket")[:12]


def status(link: Path) -> dict[str, Any]:
    """Return a server's status; {"state": "gone"} if it does not exist, {"state": "silent"} if it hangs."""
    try:
        for message in _said(link, m.StatusQuery(number=1)):
            if isinstance(message, m.Status):
                return message.facts
            if isinstance(message, m.Refused):
                return {"state": "refused", "reason": message.reason}
    except TimeoutError:
        return {"state": "silent"}
    except (OSError, ProtocolError):
        pass
    return {"state": "gone"}


def stop(link: Path) -> bool:
    """Tell a server to accept no new clients and to end when its jobs are done; return whether it received that."""
    try:
        # Its reply to StatusQuery proves that it has read the message before.
        return any(isinstance(message, m.Status) for message in _said(link, m.Shutdown(), m.StatusQuery(number=1)))
    except (OSError, ProtocolError):
        return False


class Visit:
    """A connection for queries, which does not keep the server alive. Not thread-safe.

    Every method raises TimeoutError if the server does not answer, and OSError or ProtocolError if it is gone or
    refuses the connection.
    """

    def __init__(self, link: Path) -> None:
        self._sock = _connect(link)
        try:
            self._channel: Channel[m.ToClient] = Channel(self._sock, m.ToClient)
            self._channel.send(_hello())
        except BaseException:
            self._sock.close()
            raise

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

    def _received(self) -> m.ToClient:
        frame = self._channel.receive()
        if frame is None:
            raise ConnectionResetError("the server ended")
        if isinstance(frame[0], m.Refused):
            raise ProtocolError(frame[0].reason)
        return frame[0]

    def close(self) -> None:
        self._channel.close()


def _hello() -> m.Hello:
    """Return the first message of a visitor, a client that submits no jobs and does not keep the server alive."""
    return m.Hello(protocol=PROTOCOL_VERSION, fxpool=__version__, pid=os.getpid(), visitor=True)


def _connect(link: Path) -> socket.socket:
    """Connect to a server of this user. Raises OSError, ProtocolError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(_SILENCE)
        # Not through the link, whose path may be too long for a socket address.
        sock.connect(os.path.join(link.parent, os.readlink(link)))
        check_peer(sock, os.getuid())
    except BaseException:
        sock.close()
        raise
    return sock


def _said(link: Path, *messages: Message) -> Iterator[m.ToClient]:
    """Send Hello and `messages`, then yield the server's messages. Raises TimeoutError, OSError and ProtocolError."""
    with _connect(link) as sock:
        channel: Channel[m.ToClient] = Channel(sock, m.ToClient)
        for message in (_hello(), *messages):
            channel.send(message)
        while (frame := channel.receive()) is not None:
            yield frame[0]
