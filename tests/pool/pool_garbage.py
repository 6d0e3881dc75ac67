"""Job functions that speak on their worker's own socket; workers import this module by `sys_path`."""

from __future__ import annotations

import contextlib
import json
import logging
import pathlib
import socket
import time
import warnings

from fxpool.pool import current_job
from fxpool.pool.worker.worker import JobContext


class _Tap:
    """The worker's socket, with a copy of everything that passes."""

    def __init__(self, sock: socket.socket, sent: pathlib.Path, received: pathlib.Path) -> None:
        self._sock = sock
        self._sent = sent.open("ab", buffering=0)
        self._received = received.open("ab", buffering=0)

    def sendall(self, data: bytes) -> None:
        self._sent.write(data)
        self._sock.sendall(data)

    def recv_into(self, buffer: memoryview) -> int:
        count = self._sock.recv_into(buffer)
        self._received.write(buffer[:count])
        return count


def _job() -> JobContext:
    job = current_job()
    assert job is not None
    return job


def talk(data: bytes) -> bytes:
    """Says all that a worker can say; `data` names two files for what is sent and received."""
    job = _job()
    channel = job._link.channel
    channel.sock = _Tap(channel.sock, *map(pathlib.Path, json.loads(data)))  # type: ignore[assignment]
    logging.getLogger("pool_garbage").warning("a record")
    warnings.warn("a warning")
    job.phase("talks")
    assert job.slots_free() >= 0
    futures = [job.submit("pool_jobs:echo", b"%d" % n * 20, label="sub-job", retries=n) for n in range(2)]
    echoed = b" ".join(future.result() for future in futures)
    assert job.submit("pool_jobs:raise_custom", b"x", label="fails").exception() is not None
    job.submit("pool_jobs:sleep", b"", label="is cancelled").cancel()
    return echoed


def say(data: bytes) -> bytes:
    """Sends `data` to the server as it is; then its worker answers and ends as any other."""
    # The server may have closed the socket, or be about to kill us.
    with contextlib.suppress(OSError):
        _job()._link.channel.sock.sendall(data)
    return b"said"


def say_and_stay(data: bytes) -> bytes:
    """Sends `data` and does not end by itself."""
    _job()._link.channel.sock.sendall(data)
    time.sleep(600)
    return b""
