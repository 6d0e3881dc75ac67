"""Stores that speak S3 as a remote cache, by obstore.

Endpoint, region and credentials come from the usual environment variables: AWS_ENDPOINT_URL, AWS_REGION,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, ... An index is a row of small objects, numbered from 0, with a name each. A
server could answer a request for a listing without end, and obstore would take all of it.

obstore's threads do not survive a fork, and any call in the child would wait for them forever. So the child of a
process that has used obstore does not use the remote.

obstore is imported inside functions: only a lookup in the remote needs it.
"""

from __future__ import annotations

import datetime
import os
from typing import Any

from fxpool.codecache.remote.client import Deadline, RemoteError
from fxpool.codecache.store.entry import is_hex_digest

__all__ = ["S3Client"]

# Bytes of a name in an index, at most, and names in an index.
_NAME = 256
_MOST_NAMES = 64
# Bytes of a body that are received before they are counted.
_PIECE = 1 << 20
# The process whose threads obstore's are.
_used_by: int | None = None


class S3Client:
    """A client of one bucket, for ``s3://bucket/prefix``. Raises ImportError without obstore, ValueError."""

    def __init__(self, url: str, seconds: float) -> None:
        from obstore.exceptions import BaseError
        from obstore.store import S3Store

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
        import obstore

        def read() -> bytes:
            answer = obstore.get(self._store, name)
            if answer.meta["size"] > most:
                raise RemoteError("too_large", name)
            pieces, size = [], 0
            for piece in answer.stream(min_chunk_size=_PIECE):  # in chunks, the body may be longer than it says
                pieces.append(bytes(piece))
                size += len(piece)
                if size > most:
                    raise RemoteError("too_large", name)
            return b"".join(pieces)

        return self._call(deadline, read)

    def put(self, name: str, value: bytes, deadline: Deadline, *, replace: bool) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        def write() -> bool:
            try:
                obstore.put(self._store, name, value, mode="overwrite" if replace else "create", use_multipart=False)
            except AlreadyExistsError:
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
