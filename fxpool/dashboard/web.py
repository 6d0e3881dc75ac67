"""An HTTP server for a few readers on one event loop: GET only, one request per connection, all sizes limited.

Each connection is a separate task with time limits for sending and reading, so a slow reader
delays no other and is dropped. Any user of the machine can connect, so a connection that has not
sent its request gives way to newer ones.

Requests need the secret in the URL and a Host header that names this machine. The secret keeps out other users of the
machine, who can reach the port as well. The Host header keeps out pages of another site whose name resolves to this
machine (DNS rebinding), because the browser sends that name. Answers have a Content-Security-Policy, so that even a
mistake in the page could not load anything from another site.
"""

from __future__ import annotations

import asyncio
import hmac
import http
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from fxpool import notices

__all__ = [
    "HEADERS", "MOST", "Answer", "Refused", "Request", "WebServer", "allowed_host", "new_token", "parse", "policy",
    "refusal", "right_token",
]  # fmt: skip

log = notices.logger(__name__)

# Requests that are answered at a time, and connections that have sent no request yet.
_MOST_AT_ONCE = 64
_MOST_SILENT = 32
# Seconds for a request to arrive, and for a reader to take a piece of an answer.
_PATIENCE = 10.0
_SILENCE = 15.0
_PIECE = 256 << 10
#: Bytes of a request's line and headers together.
MOST = 8 << 10

_LINE = re.compile(rb"(?P<method>[A-Z]{1,16}) (?P<target>/[\x21-\x7e]*) HTTP/1\.[01]")
_HEADER = re.compile(rb"(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(?P<value>[\t\x20-\x7e\x80-\xff]*?)[ \t]*")
_LOCAL = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:]+\]|[^:\s]*)(:(?P<port>\d{1,5}))?")

#: Headers of every answer, beside the policy.
HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class Request:
    """`parts` are the decoded parts of the path, between its slashes; a slash at the end gives an empty last one."""

    method: str
    parts: tuple[str, ...]
    host: str | None


@dataclass(frozen=True)
class Refused:
    """No request: the status to answer with, and why."""

    status: int
    reason: str


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
    headers = {"Content-Type": answer.kind, "Connection": "close", **HEADERS, **answer.headers}
    headers.setdefault("Content-Security-Policy", policy())
    if answer.stream is None:
        headers["Content-Length"] = str(len(answer.body))
    lines = [f"HTTP/1.1 {answer.status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    await _write(writer, ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + answer.body)


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write in pieces. Raises TimeoutError if the reader takes too long for one, OSError if it left."""
    for start in range(0, len(data), _PIECE):
        writer.write(data[start : start + _PIECE])
        await asyncio.wait_for(writer.drain(), _SILENCE)


def parse(head: bytes) -> Request | Refused:
    """Parse all that comes before the empty line."""
    lines = head.split(b"\r\n")
    match = _LINE.fullmatch(lines[0])
    if match is None:
        return Refused(400, "not an HTTP request")
    hosts = []
    for line in lines[1:]:
        header = _HEADER.fullmatch(line)
        if header is None:
            return Refused(400, "malformed header")
        name = header["name"].lower()
        if name == b"host":
            hosts.append(header["value"].decode("latin-1"))
        elif name == b"transfer-encoding" or (name == b"content-length" and header["value"] != b"0"):
            return Refused(400, "requests must not have a body")
    if len(hosts) > 1:
        return Refused(400, "several Host headers")
    path = match["target"].partition(b"?")[0].decode("ascii")
    # Decoded after it was split: an encoded slash is part of a name, and names no other place.
    parts = tuple(unquote(part) for part in path[1:].split("/"))
    return Request(match["method"].decode(), parts, hosts[0] if hosts else None)


def new_token() -> str:
    """Return a secret for the URL."""
    return secrets.token_urlsafe(24)


def policy(nonce: str = "") -> str:
    """Return the Content-Security-Policy: scripts and styles with this nonce only, and nothing from elsewhere."""
    own = f"script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; connect-src 'self'; " if nonce else ""
    return f"default-src 'none'; {own}base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def right_token(sent: str, token: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(sent.encode("utf-8", "surrogateescape"), token.encode())


def allowed_host(header: str | None, port: int) -> bool:
    """Return whether a Host header names this machine and this port."""
    match = _HOST.fullmatch(header or "")
    return match is not None and match["name"].lower() in _LOCAL and int(match["port"] or 80) == port
