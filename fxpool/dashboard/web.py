"""An HTTP server for a few readers on one event loop: GET only, one request per connection, all sizes limited.

Each connection is a separate task with time limits for sending and reading, so a slow reader
delays no other and is dropped. Any user of the machine can connect, so a connection that has not
sent its request gives way to newer ones.
"""

from __future__ import annotations

import asyncio
import http
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from fxpool import notices
from fxpool.dashboard import access
from fxpool.dashboard.requests import MOST, Refused, Request, parse

__all__ = ["Answer", "WebServer", "refusal"]

log = notices.logger(__name__)

# Requests that are answered at a time, and connections that have sent no request yet.
_MOST_AT_ONCE = 64
_MOST_SILENT = 32
# Seconds for a request to arrive, and for a reader to take a piece of an answer.
_PATIENCE = 10.0
_SILENCE = 15.0
_PIECE = 256 << 10


@dataclass
class Answer:
    """An answer: a `body`, or a `stream` of pieces until the reader disconnects."""

    body: bytes = b""
    kind: str = "text/plain; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None


def refusal(status: int, reason: str, **headers: str) -> Answer:
    """Return an error answer."""
    return Answer(f"{reason}\n".encode(), status=status, headers=headers)


class WebServer:
    """Listens on `address` and answers with what `respond` returns."""

    def __init__(self, respond: Callable[[Request], Awaitable[Answer]]) -> None:
        self._respond = respond
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.Task[None], None] = {}  # the oldest first
        self.port = 0

    async def start(self, address: str, port: int) -> None:
        """Begin to listen; port 0 takes a free one. Raises OSError."""
        self._server = await asyncio.start_server(self._accepted, address, port, limit=MOST)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, and drop all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self._silent[task] = None
        if len(self._silent) > _MOST_SILENT:
            next(iter(self._silent)).cancel()
        try:
            await self._serve(task, reader, writer)
        except (OSError, asyncio.TimeoutError):
            pass  # the reader left, or is too slow
        except asyncio.CancelledError:
            pass  # the server closes; asyncio's streams would report it as an error
        except Exception as error:
            log.warning("a request to the dashboard failed: %r", error)
        finally:
            self._connections.discard(task)
            self._silent.pop(task, None)
            writer.close()

    async def _serve(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _PATIENCE)
        except asyncio.LimitOverrunError:
            return await _send(writer, refusal(431, f"requests are limited to {MOST} bytes"))
        except asyncio.IncompleteReadError:
            return
        self._silent.pop(task, None)
        if len(self._connections) - len(self._silent) > _MOST_AT_ONCE:
            return await _send(writer, refusal(503, "too many connections"))
        request = parse(head[:-4])
        if isinstance(request, Refused):
            return await _send(writer, refusal(request.status, request.reason))
        if request.method != "GET":
            return await _send(writer, refusal(405, "only GET is allowed", Allow="GET"))
        answer = await self._respond(request)
        if answer.stream is None:
            return await _send(writer, answer)
        await _send(writer, answer)
        await self._stream(reader, writer, answer.stream)

    async def _stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pieces: AsyncIterator[bytes]
    ) -> None:
        # A reader that leaves is seen by the end of what it sends, even while there is nothing to tell it.
        left = asyncio.ensure_future(reader.read(1))

        async def pass_on() -> None:
            async for piece in pieces:
                await _write(writer, piece)

        passing = asyncio.ensure_future(pass_on())
        try:
            await asyncio.wait({left, passing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (left, passing):
                task.cancel()
            results = await asyncio.gather(left, passing, return_exceptions=True)
        if isinstance(results[1], Exception):
            raise results[1]


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> None:
    try:
        phrase = http.HTTPStatus(answer.status).phrase
    except ValueError:
        phrase = ""
    headers = {"Content-Type": answer.kind, "Connection": "close", **access.HEADERS, **answer.headers}
    headers.setdefault("Content-Security-Policy", access.policy())
    if answer.stream is None:
        headers["Content-Length"] = str(len(answer.body))
    lines = [f"HTTP/1.1 {answer.status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    await _write(writer, ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + answer.body)


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write in pieces. Raises TimeoutError if the reader takes too long for one, OSError if it left."""
    for start in range(0, len(data), _PIECE):
        writer.write(data[start : start + _PIECE])
        await asyncio.wait_for(writer.drain(), _SILENCE)
