"""The asyncio side of a socket: frames in by callback, frames out without waiting.

Below asyncio's streams on purpose: they copy every payload through a buffer of their own.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from fxpool.errors import ProtocolError
from fxpool.pool.protocol import PAYLOAD_CAP, Buffer, FrameDecoder, Outbox, encode

__all__ = ["Connection"]

M = TypeVar("M")

# Bytes read before others get their turn.
_TURN = 8 << 20
# What a frame counts beside its bytes: answering a short one takes time, too.
_FRAME = 4 << 10


class Connection(Generic[M]):
    """A framed non-blocking socket in the running loop.

    `on_frame(message, payload)` is called for every frame and may raise ProtocolError; `on_end(error)` is called once,
    with None when the peer closed the stream between two frames; a last message may be sent in it, then the connection
    is closed. After `close()` neither is called.
    """

    def __init__(
        self,
        sock: socket.socket,
        kinds: Any,
        on_frame: Callable[[M, memoryview], None],
        on_end: Callable[[Exception | None], None],
        *,
        cap: int = PAYLOAD_CAP,
    ) -> None:
        self.sock = sock
        self._on_frame, self._on_end = on_frame, on_end
        self._decoder: FrameDecoder[M] = FrameDecoder(kinds, cap=cap)
        self._outbox = Outbox()
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self.closed = False
        self._ended = False
        self._taken = 0
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._readable)

    def raise_cap(self, cap: int) -> None:
        """What the peer may send once it is known."""
        self._decoder.cap = cap

    def send(self, message: msgspec.Struct, payload: Buffer = b"") -> None:
        """Send now what the socket takes, the rest when it can. Silently nothing when closed."""
        if self.closed or self._closing:
            return
        waiting = bool(self._outbox)
        self._outbox.push(encode(message, payload))
        if not waiting:
            self._flush()

    def close(self, *, after_sending: bool = False) -> None:
        if self.closed:
            return
        if after_sending and self._outbox:
            self._closing = True
            self._loop.remove_reader(self.sock.fileno())
            return
        self.closed = True
        # What is called refers to us again: without this, buffers would wait for the garbage collector.
        self._on_frame, self._on_end = _nothing, _nothing
        self._decoder = FrameDecoder(None)
        self._loop.remove_reader(self.sock.fileno())
        self._loop.remove_writer(self.sock.fileno())
        self._outbox.clear()
        self.sock.close()

    def _flush(self) -> None:
        try:
            done = self._outbox.flush(self.sock)
        except OSError:
            # The peer is gone. What it sent before is still to be read; the reader sees the end after it.
            self._outbox.clear()
            done = True
        if not done:
            self._loop.add_writer(self.sock.fileno(), self._flush)
            return
        self._loop.remove_writer(self.sock.fileno())
        if self._closing:
            self._closing = False
            self.close()

    def _readable(self) -> None:
        budget = _TURN
        while budget > 0 and not self.closed and not self._ended:
            try:
                count = self.sock.recv_into(self._decoder.buffer())
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                count = 0
            if not count:
                cut = ProtocolError("the connection ended inside a frame") if self._decoder.mid_frame else None
                return self._end(cut)
            budget -= count
            self._taken += count
            try:
                frame = self._decoder.received(count)
                if frame is not None:
                    budget -= _FRAME
                    self._on_frame(*frame)
            except ProtocolError as error:
                return self._end(error)

    def _end(self, error: Exception | None) -> None:
        if not self.closed and not self._ended:
            self._ended = True
            self._on_end(error)
            self.close(after_sending=error is not None)

    def drain(self) -> None:
        """Take what the peer sent before it died."""
        before = -1
        while not self.closed and not self._ended and self._taken != before:
            before = self._taken
            self._readable()


def _nothing(*_: object) -> None:
    pass
