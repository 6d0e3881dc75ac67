"""Redis and Valkey as a remote cache, by redis-py.

redis-py limits the time of each read from a socket, so a server that sends a byte now and then could make it wait
forever. It also reads as many bytes as a server announces. `_Bounded` sockets enforce the deadline and the size of the
whole call instead.

redis is imported inside functions: its import takes 0.2 s, and only a lookup in the remote needs it.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from fxpool.codecache.remote.client import Deadline, RemoteError

__all__ = ["RedisClient"]

# Bytes of an answer beside its values, for each of them.
_FRAME = 1024
# Bytes of a name in an index, at most.
_NAME = 256
# Bytes of a lease's token, at most.
_TOKEN = 64
# A holder whose lease has lapsed must not renew or end that of the next holder.
_RENEW = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2]) or 0"
_RELEASE = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0"


class _Limits:
    """The limits of the call that is under way: seconds, and bytes that may be received."""

    def __init__(self, seconds: float) -> None:
        self.deadline = Deadline(seconds)
        self.bytes = _FRAME

    def begin(self, deadline: Deadline, size: int) -> None:
        # A connection that is made on the way says hello first.
        self.deadline, self.bytes = deadline, size + 4 * _FRAME

    def seconds(self, timeout: float | None) -> float:
        left = self.deadline.left()
        return left if timeout is None else min(timeout, left)

    def received(self, size: int) -> None:
        self.bytes -= size
        if self.bytes < 0:
            raise RemoteError("too_large", "the server sent more than was requested")


class _Bounded:
    """A socket that keeps to the limits of a call; for the rest the socket it was given."""

    def __init__(self, sock: socket.socket, limits: _Limits) -> None:
        self._sock, self._limits = sock, limits
        self._timeout = sock.gettimeout()

    def settimeout(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._sock.settimeout(timeout)

    def recv(self, size: int, *flags: int) -> bytes:
        self._sock.settimeout(self._limits.seconds(self._timeout))
        data = self._sock.recv(size, *flags)
        self._limits.received(len(data))
        return data

    def recv_into(self, buffer: Any, *arguments: int) -> int:
        self._sock.settimeout(self._limits.seconds(self._timeout))
        size = self._sock.recv_into(buffer, *arguments)
        self._limits.received(size)
        return size

    def sendall(self, data: Any, *flags: int) -> None:
        self._sock.settimeout(self._limits.seconds(self._timeout))
        self._sock.sendall(data, *flags)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def _connection_class(url: str, limits: _Limits) -> type[Any]:
    """Return redis-py's class of connections for an address, with bounded sockets."""
    import redis

    base: type[Any]
    if url.startswith("unix:"):
        base = redis.UnixDomainSocketConnection
    else:
        base = redis.SSLConnection if url.startswith("rediss:") else redis.Connection

    class BoundedConnection(base):
        def _connect(self) -> Any:  # the one place where redis-py gives its socket away
            timeout = limits.seconds(None)
            self.socket_connect_timeout = self.socket_timeout = timeout
            return _Bounded(super()._connect(), limits)

    return BoundedConnection


class RedisClient:
    """A client of one server. Raises ImportError without redis-py, ValueError for an address that it does not take."""

    def __init__(self, url: str, seconds: float) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._pid = os.getpid()
        self._limits = _Limits(seconds)
        self._pool = redis.ConnectionPool.from_url(
            url,
            connection_class=_connection_class(url, self._limits),
            retry=Retry(NoBackoff(), 0),  # the caller would wait for the retries as well
            protocol=2,
            decode_responses=False,
        )
        self._redis = redis.Redis(connection_pool=self._pool)

    def names(self, index: str, most: int, deadline: Deadline) -> list[str]:
        found = self._call(deadline, most * (_NAME + 16), "SRANDMEMBER", index, most)
        if not isinstance(found, list) or not all(isinstance(name, bytes) for name in found):
            raise RemoteError("answer", "not a list of names")
        return [name.decode("ascii", "replace") for name in found[:most]]

    def get(self, name: str, most: int, deadline: Deadline) -> bytes | None:
        # One byte more than wanted tells that it is larger, and no server has to send all of it.
        value = self._call(deadline, most + _FRAME, "GETRANGE", name, 0, most)
        if not isinstance(value, bytes):
            raise RemoteError("answer", "not bytes")
        if len(value) > most:
            raise RemoteError("too_large", name)
        return value or None

    def put(self, name: str, value: bytes, deadline: Deadline, *, replace: bool) -> bool:
        arguments = () if replace else ("NX",)
        return self._call(deadline, _FRAME, "SET", name, value, *arguments) is not None

    def add(self, index: str, name: str, deadline: Deadline) -> None:
        self._call(deadline, _FRAME, "SADD", index, name)

    def lease(self, name: str, token: str, seconds: float, deadline: Deadline) -> bool:
        return self._call(deadline, _FRAME, "SET", name, token, "NX", "PX", _milliseconds(seconds)) is not None

    def is_leased(self, name: str, seconds: float, deadline: Deadline) -> bool:
        return self.get(name, _TOKEN, deadline) is not None

    def renew(self, name: str, token: str, seconds: float, deadline: Deadline) -> bool:
        return self._call(deadline, _FRAME, "EVAL", _RENEW, 1, name, token, _milliseconds(seconds)) == 1

    def release(self, name: str, token: str, deadline: Deadline) -> bool:
        return self._call(deadline, _FRAME, "EVAL", _RELEASE, 1, name, token) == 1

    def close(self) -> None:
        try:
            if self._pid == os.getpid():  # a child's copies of sockets are its parent's
                self._pool.disconnect(inuse_connections=True)
        except Exception:
            pass

    def _call(self, deadline: Deadline, size: int, *command: Any) -> Any:
        import redis

        self._limits.begin(deadline, size)
        try:
            return self._redis.execute_command(*command, NEVER_DECODE=True)
        except RemoteError:
            self.close()  # the rest of an answer may be on its way
            raise
        except redis.TimeoutError as error:
            raise RemoteError("timeout") from error
        except redis.AuthenticationError as error:
            raise RemoteError("answer", _short(error)) from error
        except redis.ConnectionError as error:
            before = error.__context__ or error.__cause__
            if isinstance(before, RemoteError):
                raise before from error
            connecting = isinstance(before, (ConnectionRefusedError, FileNotFoundError, socket.gaierror))
            raise RemoteError("unreachable" if connecting else "closed", _short(error)) from error
        except OSError as error:
            self.close()
            raise RemoteError("closed", _short(error)) from error
        except Exception as error:  # an answer may make the parser raise anything
            self.close()
            raise RemoteError("answer", f"{type(error).__name__}: {_short(error)}") from error


def _milliseconds(seconds: float) -> int:
    return max(1, round(1000 * seconds))


def _short(error: BaseException) -> str:
    """Return an error's text without control characters, as a server may have written it."""
    return "".join(character for character in str(error)[:200] if character.isprintable())
