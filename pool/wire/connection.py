"""A framed socket in asyncio: passes received frames to a callback, and sends without waiting.

Output that a peer has not read yet is buffered here. While more than `outbox_cap` bytes are unread, no frames are read
from the peer, so that it cannot request more output; check `full` before sending something optional. A peer that then
reads nothing for `patience` seconds is disconnected.

This does not use asyncio's streams, because they copy every payload into an additional buffer.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from fxpool.errors import ProtocolError
from fxpool.pool.wire.protocol import PAYLOAD_CAP, Buffer, FrameDecoder, Message, Outbox, encode

__all__ = ["PATIENCE", "Connection", "PeerNotReadingError"]

M = TypeVar("M")

# Bytes to read from a connection before the event loop serves others.
_TURN = 8 << 20
# Seconds within which a peer over its cap must read something.
PATIENCE = 10.0
# Bytes added for each frame in that count, because even a short frame takes time to answer.
_FRAME = 4 << 10


class PeerNotReadingError(ProtocolError):
    """The peer does not read from its socket."""


class Connection(Generic[M]):
    """A framed non-blocking socket in the running loop.

    `on_frame(message, payload)` is called for every frame and may raise ProtocolError. `on_end(error)` is called once,
    with None if the peer closed the stream between two frames. It may send a last message; then the connection is
    closed. Neither is called after `close()`.
    """

    def __init__(
        self,
        sock: socket.socket,
        kinds: Any,
        on_frame: Callable[[M, memoryview], None],
        on_end: Callable[[Exception | None], None],
        *,
        cap: int = PAYLOAD_CAP,
        outbox_cap: int | None = None,
        patience: float = PATIENCE,
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
        self._outbox_cap, self._patience = outbox_cap, patience
        self._unread: asyncio.TimerHandle | None = None
        self._moved = False  # whether the peer has read anything since the last check
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._readable)

    def raise_cap(self, cap: int) -> None:
        """Set the largest number of bytes in a frame of the peer."""
        self._decoder.cap = cap

    @property
    def full(self) -> bool:
        """True while the peer leaves more than its `outbox_cap` unread."""
        return self._outbox_cap is not None and self._outbox.size > self._outbox_cap

    def send(self, message: Message, payload: Buffer = b"") -> None:
        """Send as much as the socket takes now, and the remaining bytes later. No-op when closed."""
        if self.closed or self._closing:
            return
        waiting = bool(self._outbox)
        self._outbox.push(encode(message, payload))
        if not waiting:
            self._flush()
        if self.full and self._unread is None and not self.closed:
            self._loop.remove_reader(self.sock.fileno())
            self._moved = False
            self._unread = self._loop.call_later(self._patience, self._look_at_reader)

    def close(self, *, after_sending: bool = False) -> None:
        """Close the connection, by default at once.

        With `after_sending`, close it when the buffered output has been sent, or after `patience` seconds.
        """
        if self.closed:
            return
        if after_sending and self._outbox:
            self._closing = True
            self._loop.remove_reader(self.sock.fileno())
            self._stop_looking()
            self._unread = self._loop.call_later(self._patience, self.close)
            return
        self.closed = True
        # The callbacks refer to this object: without this, buffers would wait for the garbage collector.
        self._on_frame, self._on_end = _nothing, _nothing
        self._decoder = FrameDecoder(None)
        self._loop.remove_reader(self.sock.fileno())
        self._loop.remove_writer(self.sock.fileno())
        self._outbox.clear()
        self._stop_looking()
        self.sock.close()

    def _look_at_reader(self) -> None:
        """Disconnect a peer that has read nothing since the last check."""
        if self._moved:
            self._moved = False
            self._unread = self._loop.call_later(self._patience, self._look_at_reader)
            return
        size, self._unread = self._outbox.size, None
        self._outbox.clear()
        self._end(
            PeerNotReadingError(f"the peer has read nothing for {self._patience:g} s while {size} bytes are pending")
        )

    def _stop_looking(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _flush(self) -> None:
        before = self._outbox.size
        try:
            done = self._outbox.flush(self.sock)
            self._moved |= self._outbox.size < before
        except OSError:
            # The peer is gone. Its last messages are still in the socket; after them the reader sees the end.
            self._outbox.clear()
            done = True
        if self._unread is not None and not self._closing and not self.full:
            self._stop_looking()
            self._loop.add_reader(self.sock.fileno(), self._readable)
        if not done:
            self._loop.add_writer(self.sock.fileno(), self._flush)
            return
        self._loop.remove_writer(self.sock.fileno())
        if self._closing:
            self._closing = False
            self.close()

    def _readable(self) -> None:
        budget = _TURN
        while budget > 0 and not self.closed and not self._ended and self._unread is None:
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
            except (ProtocolError, OSError, MemoryError) as error:  # MemoryError: a frame too long to allocate
                return self._end(error)

    def _end(self, error: Exception | None) -> None:
        if not self.closed and not self._ended:
            self._ended = True
            self._on_end(error)
            self.close(after_sending=error is not None)

    def drain(self) -> None:
        """Read all that the peer sent before it died."""
        before = -1
        while not self.closed and not self._ended and self._taken != before:
            before = self._taken
            self._readable()


def _nothing(*_: object) -> None:
    pass
