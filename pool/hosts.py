"""Lists this host's servers from outside, asks for their status and tells them to end."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from fxpool.errors import ProtocolError
from fxpool.pool import messages as m
from fxpool.pool.protocol import PROTOCOL_VERSION, Channel, check_peer
from fxpool.version import __version__

__all__ = ["links", "status", "stop"]

_SILENCE = 2.0


def links(root: Path) -> list[Path]:
    """Return the links to the sockets of this host's servers, under the runtime directory `root`."""
    return sorted(root.glob("host-*.socket"))


def status(link: Path) -> dict[str, Any]:
    """Return a server's status facts; {"state": "gone"} if it is not there, {"state": "silent"} if it hangs."""
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
    """Tell a server to end: it takes no new client, and ends when its jobs are done. Return whether it was there."""
    try:
        # Its Status reply proves that it has read the message before.
        return any(isinstance(message, m.Status) for message in _said(link, m.Shutdown(), m.StatusQuery(number=1)))
    except (OSError, ProtocolError):
        return False


def _said(link: Path, *messages: msgspec.Struct) -> Iterator[m.ToClient]:
    """Yield a server's messages after Hello and `messages`. Raises TimeoutError (silence), OSError, ProtocolError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(_SILENCE)
        # Not by the link: its own path may be too long for a socket address.
        sock.connect(os.path.join(link.parent, os.readlink(link)))
        check_peer(sock, os.getuid())
        channel: Channel[m.ToClient] = Channel(sock, m.ToClient)
        for message in (m.Hello(protocol=PROTOCOL_VERSION, fxpool=__version__, pid=os.getpid()), *messages):
            channel.send(message)
        while (frame := channel.receive()) is not None:
            yield frame[0]
