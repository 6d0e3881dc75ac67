"""Stores that speak S3 as a remote cache, by obstore.

Endpoint, region and credentials come from the usual environment variables: AWS_ENDPOINT_URL, AWS_REGION,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, ... An index is not stored: listing the values below its name gives it.

obstore's threads do not survive a fork, and any call in the child would wait for them forever. So the child of a
process that has used obstore does not use the remote.

obstore is imported inside functions: only a lookup in the remote needs it.
"""

from __future__ import annotations

import datetime
import os
from typing import Any

from fxpool.codecache.remote.client import Deadline, RemoteError

__all__ = ["S3Client"]

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
        import obstore

        def first() -> list[str]:
            for chunk in obstore.list(self._store, prefix=index, chunk_size=most):
                return [str(one["path"]).rpartition("/")[2] for one in chunk[:most]]
            return []

        return self._call(deadline, first) or []

    def get(self, name: str, most: int, deadline: Deadline) -> bytes | None:
        import obstore

        def read() -> bytes:
            answer = obstore.get(self._store, name)
            if answer.meta["size"] > most:
                raise RemoteError("too_large", name)
            return bytes(answer.bytes())

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
        pass  # a listing has it

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
        except FileNotFoundError:
            return None
        except Exception as error:
            raise RemoteError(_reason(error), str(error)[:200]) from error


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
