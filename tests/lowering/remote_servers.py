"""Servers on 127.0.0.1 for the tests of the remote cache: real ones, and some that misbehave."""

from __future__ import annotations

import contextlib
import logging
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

__all__ = ["misbehaving", "redis_and_s3", "redis_server", "s3_server"]

_SECONDS = 20.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextlib.contextmanager
def redis_server(directory: Path, *arguments: str, port: int = 0) -> Iterator[str]:
    """The address of a server of Redis or Valkey, on a socket in `directory` (a short path) or on `port`."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        pytest.skip("no redis-server (as root: apt-get install redis-server)")
    path = directory / "redis.sock"
    place = ["--port", str(port), "--bind", "127.0.0.1"] if port else ["--port", "0", "--unixsocket", str(path)]
    command = [program, *place, "--save", "", "--appendonly", "no", "--dir", str(directory), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = ""
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if "ccept connections" in line:
                break
        else:
            raise AssertionError(f"redis-server did not start:\n{said}")
        yield f"redis://127.0.0.1:{port}/0" if port else f"unix://{path}"
    finally:
        process.terminate()
        process.communicate(timeout=_SECONDS)


@contextlib.contextmanager
def s3_server(bucket: str = "compiled") -> Iterator[dict[str, str]]:
    """The environment variables by which clients find a server that speaks S3, with an empty bucket."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # one line per request
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        for path in ("moto-api/reset", bucket):
            method = "POST" if "/" in path else "PUT"
            urllib.request.urlopen(
                urllib.request.Request(f"{endpoint}/{path}", method=method), timeout=_SECONDS
            ).close()
        yield {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }
    finally:
        server.stop()


class Misbehaving:
    """A TCP server that does `behave(connection)` for each connection. `connections` counts them."""

    def __init__(self, behave: Callable[[socket.socket], None]) -> None:
        self._behave = behave
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.connections = 0
        self.over = threading.Event()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while not self.over.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            self._behave(connection)

    def close(self) -> None:
        self.over.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_SECONDS)


@contextlib.contextmanager
def redis_and_s3() -> Iterator[dict[str, str]]:
    """The addresses of an empty Redis and an empty bucket, which this process's clients find by its environment."""
    with pytest.MonkeyPatch.context() as patch, s3_server() as environment, tempfile.TemporaryDirectory() as directory:
        for name, value in environment.items():
            patch.setenv(name, value)
        with redis_server(Path(directory)) as url:
            yield {"redis": url, "s3": "s3://compiled/one"}


@contextlib.contextmanager
def misbehaving(behave: Callable[[socket.socket], None]) -> Iterator[Misbehaving]:
    server = Misbehaving(behave)
    try:
        yield server
    finally:
        server.close()


# ---------------------------------------------------------------- ways to misbehave


class Relay:
    """Passes all bytes on to another server, on a socket or a port: each piece after `pause` seconds, none if `cut`."""

    def __init__(self, address: str | tuple[str, int], pause: float = 0.0) -> None:
        self._address, self._pause = address, pause
        self.cut = threading.Event()

    def __call__(self, connection: socket.socket) -> None:
        family = socket.AF_UNIX if isinstance(self._address, str) else socket.AF_INET
        with socket.socket(family) as server:
            server.connect(self._address)
            back = threading.Thread(target=self._pass, args=(server, connection), daemon=True)
            back.start()
            self._pass(connection, server)
            back.join(_SECONDS)

    def _pass(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                time.sleep(self._pause)
                if not self.cut.is_set():
                    to.sendall(piece)
            to.shutdown(socket.SHUT_WR)


def hangs(connection: socket.socket) -> None:
    """Takes what is sent and says nothing."""
    while connection.recv(1 << 16):
        pass


def closes_at_once(connection: socket.socket) -> None:
    """Takes a request and hangs up."""
    connection.recv(1 << 16)


def answers(*answer: bytes, pause: float = 0.0) -> Callable[[socket.socket], None]:
    """Sends the same for each thing that is sent to it, in these pieces, then waits."""

    def behave(connection: socket.socket) -> None:
        while connection.recv(1 << 16):
            for piece in answer:
                connection.sendall(piece)
                time.sleep(pause)

    return behave


def cut_short(answer: bytes) -> Callable[[socket.socket], None]:
    """Sends a part of an answer and hangs up."""

    def behave(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(answer)

    return behave


def floods(head: bytes, sent: list[int] | None = None) -> Callable[[socket.socket], None]:
    """Sends without end; how much goes into `sent`."""

    def behave(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(head)
        while True:
            number = connection.send(b"x" * (1 << 16))
            if sent is not None:
                sent.append(number)

    return behave
