"""The frame format of messages and payloads on a socket. Only `Channel` and `Outbox.flush` do I/O.

    magic "fxpl"   4 bytes
    version        1 byte     of the protocol; the header never changes, so that versions can refuse each other
    flags          1 byte     zero; reserved: a peer that sets a flag is refused
    reserved       2 bytes    zero
    meta length    4 bytes    big endian, at least 1
    payload length 8 bytes    big endian, may be 0
    meta           msgspec.msgpack of one tagged Struct (see `messages`)
    payload        opaque bytes

`FrameDecoder` supplies the buffer to receive into, so that the kernel writes a payload once and the server forwards it
from there. `Outbox` holds unsent bytes as views of the sender's buffers.
"""

from __future__ import annotations

import functools
import mmap
import socket
import struct
from collections import deque
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from fxpool import forks
from fxpool.errors import ProtocolError

__all__ = [
    "HANDSHAKE_CAP",
    "META_CAP",
    "PAYLOAD_CAP",
    "PROTOCOL_VERSION",
    "Channel",
    "FrameDecoder",
    "Message",
    "Outbox",
    "check_peer",
    "decoder_of",
    "encode",
    "peer_credentials",
]

PROTOCOL_VERSION = 8
MAGIC = b"fxpl"
HEADER = struct.Struct(">4sBBHIQ")

PAYLOAD_CAP = 1 << 30
META_CAP = 16 << 20
HANDSHAKE_CAP = 1 << 20

_IOV = 16
_MAPPED = 1 << 20
_encoder = msgspec.msgpack.Encoder()

M = TypeVar("M")
Buffer = bytes | bytearray | memoryview


class Message(msgspec.Struct, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base of all messages: the name of the class is sent with the fields."""


def encode(message: Message, payload: Buffer = b"") -> list[Buffer]:
    """Return the frame of `message` as buffers to send one after the other. The payload is not copied.

    Raises ProtocolError if the frame exceeds the cap that every peer has.
    """
    meta = _encoder.encode(message)
    size = len(payload)
    if len(meta) > META_CAP or size > PAYLOAD_CAP:
        raise ProtocolError(
            f"a {type(message).__name__} of {len(meta)} + {size} bytes exceeds the maximum size of a frame"
        )
    head = HEADER.pack(MAGIC, PROTOCOL_VERSION, 0, 0, len(meta), size) + meta
    return [head, payload] if size else [head]


@functools.cache
def decoder_of(kinds: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return the decoder for a union of messages. Cached: creating it takes milliseconds, and workers inherit it."""
    return msgspec.msgpack.Decoder(kinds, ext_hook=_refuse_extension)


def _refuse_extension(code: int, data: memoryview) -> NoReturn:
    """Refuse a MessagePack extension: no message has one, not even where its type allows any value."""
    raise msgspec.ValidationError(f"unexpected extension type {code} with {len(data)} bytes")


class FrameDecoder(Generic[M]):
    """Decodes frames of type `M` from bytes that arrive in chunks of any size.

    Receive into `buffer()`, then pass the number of bytes to `received()`, which returns (message, payload) if they
    complete a frame, else None. It raises ProtocolError for anything except a frame of this version within `cap`. The
    stream cannot be read after that.
    """

    def __init__(self, kinds: Any, *, cap: int = PAYLOAD_CAP) -> None:
        self.cap = cap
        self._decoder: msgspec.msgpack.Decoder[M] = decoder_of(kinds)
        self._header = bytearray(HEADER.size)
        self._restart()

    def _restart(self) -> None:
        self._view = memoryview(self._header)
        self._meta_length = -1
        self._filled = 0

    @property
    def mid_frame(self) -> bool:
        """True if a frame has been received in part."""
        return self._filled > 0 or self._meta_length >= 0

    def buffer(self) -> memoryview:
        """Return the memory to receive the next bytes into. Never empty."""
        return self._view[self._filled :]

    def received(self, count: int) -> tuple[M, memoryview] | None:
        """Accept `count` bytes in `buffer()`; return the frame that they complete, or None. Raises ProtocolError."""
        self._filled += count
        if self._filled < len(self._view):
            return None
        if self._meta_length < 0:
            self._open_body()
            return None
        body, split = self._view, self._meta_length
        self._restart()
        try:
            return self._decoder.decode(body[:split]), body[split:]
        # UnicodeDecodeError: some versions of msgspec raise it for text that is not UTF-8.
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"a frame holds no known message: {error}") from None

    def feed(self, data: Buffer) -> list[tuple[M, memoryview]]:
        """Decode bytes that were received elsewhere; return all frames that they complete."""
        frames = []
        view = memoryview(data)
        while view:
            target = self.buffer()
            count = min(len(target), len(view))
            target[:count] = view[:count]
            view = view[count:]
            frame = self.received(count)
            if frame is not None:
                frames.append(frame)
        return frames

    def _open_body(self) -> None:
        magic, version, flags, reserved, meta, payload = HEADER.unpack(self._header)
        if magic != MAGIC:
            raise ProtocolError(f"not a frame of fxpool's pool: it starts with {magic!r}")
        if version != PROTOCOL_VERSION:
            raise ProtocolError(
                f"the peer uses protocol version {version}, this process version {PROTOCOL_VERSION}",
                remedy="run one version of fxpool, and end the old server with `fxpool stop`",
            )
        if flags or reserved or not meta:
            raise ProtocolError(f"a frame's header has flags {flags}, reserved {reserved}, {meta} bytes of message")
        over = payload > self.cap if self.cap >= PAYLOAD_CAP else meta + payload > self.cap
        if meta > META_CAP or over:
            raise ProtocolError(f"a frame of {meta} + {payload} bytes exceeds the maximum of {self.cap}")
        self._meta_length = meta
        size = meta + payload
        # A peer that only announces a long frame costs no memory: the pages of a mapping exist once they are written.
        self._view = memoryview(bytearray(size) if size < _MAPPED else mmap.mmap(-1, size))
        self._filled = 0


class Outbox:
    """Bytes to send to a non-blocking socket. Not thread-safe."""

    def __init__(self) -> None:
        self._parts: deque[memoryview] = deque()
        self.size = 0  # unsent bytes

    def __bool__(self) -> bool:
        return bool(self._parts)

    def push(self, parts: list[Buffer]) -> None:
        """Append buffers, without copying them."""
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        self._parts.extend(views)
        self.size += sum(map(len, views))

    def flush(self, sock: socket.socket) -> bool:
        """Send as much as the socket takes; return whether all is sent. Raises OSError if the peer is gone."""
        while self._parts:
            batch = [self._parts[i] for i in range(min(_IOV, len(self._parts)))]
            try:
                sent = sock.sendmsg(batch, (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return False
            self.size -= sent
            while sent:
                part = self._parts[0]
                if sent < len(part):
                    self._parts[0] = part[sent:]
                    break
                sent -= len(part)
                self._parts.popleft()
        return True

    def clear(self) -> None:
        self._parts.clear()
        self.size = 0


class Channel(Generic[M]):
    """A blocking socket that carries frames. `send` may be called from any thread, `receive` only from one thread."""

    def __init__(self, sock: socket.socket, kinds: Any, *, cap: int = PAYLOAD_CAP) -> None:
        self.sock = sock
        self._decoder: FrameDecoder[M] = FrameDecoder(kinds, cap=cap)
        self._lock = forks.lock(self, "_lock")

    def send(self, message: Message, payload: Buffer = b"") -> None:
        """Send a frame. Raises OSError if the peer is gone, ProtocolError if the frame is over the cap."""
        parts = encode(message, payload)
        with self._lock:
            for part in parts:
                self.sock.sendall(part)

    def receive(self) -> tuple[M, memoryview] | None:
        """Return the next frame, or None at the end of the stream. Raises ProtocolError, also for a truncated frame."""
        while True:
            try:
                count = self.sock.recv_into(self._decoder.buffer())
            except ConnectionError:
                count = 0
            if not count:
                if self._decoder.mid_frame:
                    raise ProtocolError("the connection ended inside a frame")
                return None
            frame = self._decoder.received(count)
            if frame is not None:
                return frame

    def close(self) -> None:
        self.sock.close()


_UCRED = struct.Struct("3i")


def peer_credentials(sock: socket.socket) -> tuple[int, int]:
    """Return (pid, user id) of the process at the other end of a Unix socket, as recorded by the kernel."""
    pid, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid


def check_peer(sock: socket.socket, uid: int) -> int:
    """Return the peer's pid. Raises ProtocolError if the peer does not run as user `uid`."""
    pid, peer = peer_credentials(sock)
    if peer != uid:
        raise ProtocolError(f"the peer runs as user {peer}, this process as user {uid}")
    return pid
