"""Stores that speak S3 as a remote cache, by obstore.

Endpoint, region and credentials come from the usual environment variables: AWS_ENDPOINT_URL, AWS_REGION,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, ... An index is a row of small objects, numbered from 0, with a name each. A
server could answer a request for a listing without end, and obstore would take all of it.

A lease is an object with a token and a count that each renewal raises, or with `_FREE` after its release: conditional
writes replace it, and nothing is removed. A client that sees the same lease for its whole period takes it for lapsed.

obstore's threads do not survive a fork, and any call in the child would wait for them forever. So the child of a
process that has used obstore does not use the remote.

obstore is imported inside functions: only a lookup in the remote needs it.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from typing import Any

from fxpool.codecache.remote.client import Deadline, RemoteError
from fxpool.codecache.store.layout import is_hex_digest

__all__ = ["S3Client"]

# Bytes of a name in an index, at most, and names in an index.
_NAME = 256
_MOST_NAMES = 64
# Bytes of a body that are received before they are counted.
_PIECE = 1 << 20
# Bytes of a lease, at most, and its content when it is released.
_LEASE = 128
_FREE = b"free"
# The process whose threads obstore's are.
_used_by: int | None = None


class S3Client:
    """A client of one bucket, for ``s3://bucket/prefix``. Raises ImportError without obstore, ValueError."""

    def __init__(self, url: str, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        from obstore.exceptions import BaseError
        from obstore.store import S3Store

        self._clock = clock
        self._seen: dict[str, tuple[str, float]] = {}  # leases of others: ETag, and since when
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        limit = f"{max(1, round(1000 * seconds))}ms"
        options: dict[str, Any] = {"timeout": limit, "connect_timeout": limit}
        if endpoint.startswith("http://"):
            options["allow_http"] = True
        try:
            self._store = S3Store(
                bucket,
                prefix=prefix.strip("/") or None,
                client_options=options,
                # The caller would wait for the retries as well.
                retry_config={"max_retries": 0, "retry_timeout": datetime.timedelta(seconds=seconds)},
                **({"endpoint": endpoint} if endpoint else {}),
            )
        except BaseError as error:
            raise ValueError(str(error)) from error

    def names(self, index: str, most: int, deadline: Deadline) -> list[str]:
        found: list[str] = []
        while len(found) < most and (content := self.get(_slot(index, len(found)), _NAME, deadline)) is not None:
            name = content.decode("ascii", "replace")
            if not is_hex_digest(name) or name in found:
                raise RemoteError("answer", "not a name of an entry")
            found.append(name)
        return found

    def get(self, name: str, most: int, deadline: Deadline) -> bytes | None:
        value = self._read(name, most, deadline)
        return None if value is None else value[0]

    def _read(self, name: str, most: int, deadline: Deadline) -> tuple[bytes, str] | None:
        """Return a value and its ETag; None if it does not exist."""
        import obstore

        def read() -> tuple[bytes, str]:
            answer = obstore.get(self._store, name)
            if answer.meta["size"] > most:
                raise RemoteError("too_large", name)
            pieces, size = [], 0
            for piece in answer.stream(min_chunk_size=_PIECE):  # in chunks, the body may be longer than it says
                pieces.append(bytes(piece))
                size += len(piece)
                if size > most:
                    raise RemoteError("too_large", name)
            return b"".join(pieces), str(answer.meta["e_tag"] or "")

        value: tuple[bytes, str] | None = self._call(deadline, read)
        return value

    def put(self, name: str, value: bytes, deadline: Deadline, *, replace: bool) -> bool:
        return self._write(name, value, deadline, "overwrite" if replace else "create")

    def _write(self, name: str, value: bytes, deadline: Deadline, mode: Any) -> bool:
        """Store a value; return False if `mode`, one of obstore's, does not allow that."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        def write() -> bool:
            try:
                obstore.put(self._store, name, value, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
            except FileNotFoundError as error:
                raise RemoteError("answer", "the bucket does not exist") from error
            return True

        return bool(self._call(deadline, write))

    def add(self, index: str, name: str, deadline: Deadline) -> None:
        for number in range(_MOST_NAMES):
            slot, content = _slot(index, number), name.encode("ascii")
            if self.put(slot, content, deadline, replace=False) or self.get(slot, _NAME, deadline) == content:
                return

    def lease(self, name: str, token: str, seconds: float, deadline: Deadline) -> bool:
        before = self._read(name, _LEASE, deadline)
        if before is None:
            return self._write(name, f"{token} 0".encode(), deadline, "create")
        if self._is_held(name, *before, seconds):
            return False
        return self._replace(name, before[1], f"{token} 0".encode(), deadline)

    def is_leased(self, name: str, seconds: float, deadline: Deadline) -> bool:
        lease = self._read(name, _LEASE, deadline)
        return lease is not None and self._is_held(name, *lease, seconds)

    def _is_held(self, name: str, content: bytes, tag: str, seconds: float) -> bool:
        """Return whether a lease is neither free nor the same for `seconds` of this machine's clock."""
        if content == _FREE:
            return False
        now = self._clock()
        before, since = self._seen.get(name, ("", now))
        if before != tag:
            since = now
            self._seen[name] = tag, now
        return now - since < seconds

    def renew(self, name: str, token: str, seconds: float, deadline: Deadline) -> bool:
        lease = self._read(name, _LEASE, deadline)
        holder, _, count = lease[0].decode("ascii", "replace").partition(" ") if lease is not None else ("", "", "")
        if lease is None or holder != token or not count.isdecimal():
            return False
        return self._replace(name, lease[1], f"{token} {int(count) + 1}".encode(), deadline)

    def release(self, name: str, token: str, deadline: Deadline) -> bool:
        lease = self._read(name, _LEASE, deadline)
        if lease is None or not lease[0].startswith(f"{token} ".encode()):
            return False
        return self._replace(name, lease[1], _FREE, deadline)

    def _replace(self, name: str, tag: str, value: bytes, deadline: Deadline) -> bool:
        """Replace an object that still has this ETag; return whether it had."""
        if not tag:
            raise RemoteError("answer", "an object without an ETag")
        self._seen.pop(name, None)
        return self._write(name, value, deadline, {"e_tag": tag})

    def close(self) -> None:
        pass  # its calls end by their own time limit

    def _call(self, deadline: Deadline, function: Any) -> Any:
        global _used_by
        deadline.left()
        if _used_by not in (None, os.getpid()):
            raise RemoteError("forked", "obstore cannot be used in a child of a process that has used it")
        _used_by = os.getpid()
        try:
            return function()
        except RemoteError:
            raise
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise RemoteError("answer", "the bucket does not exist") from error
            return None
        except Exception as error:
            raise RemoteError(_reason(error), str(error)[:200]) from error


def _slot(index: str, number: int) -> str:
    """Return the name of the object that has one name of an index."""
    return f"{index}/slot-{number}"


def _reason(error: Exception) -> str:
    """Tell by its text what went wrong: obstore has one class for all that HTTP can come to."""
    text = str(error).lower()
    if "non-2xx" in text or isinstance(error, PermissionError):
        return "answer"
    if "timed out" in text:
        return "timeout"
    if "connect" in text or "dns" in text:
        return "unreachable"
    return "closed" if "error sending request" in text or "body" in text else "answer"
