"""The server's socket: what is not a client of this version is turned away, and nobody else notices."""

from __future__ import annotations

import os
import random
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pool_place import Place, until

from fxpool import __version__
from fxpool.errors import ProtocolError
from fxpool.pool import JobSpec, PoolClient
from fxpool.pool.client import hosts
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.protocol import HEADER, MAGIC, PROTOCOL_VERSION, Channel, encode


@pytest.fixture
def address(client: PoolClient) -> str:
    client.start(wait=True)
    return str(Path(client.status()["directory"]) / "socket")


def alive(client: PoolClient) -> bool:
    return client.submit("pool_jobs:echo", b"x", JobSpec(label="x")).result() == b"x"


def connect(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(address)
    sock.settimeout(20)
    return sock


def ended(sock: socket.socket) -> bool:
    try:
        while sock.recv(1000):
            pass
    except ConnectionError:
        pass
    return True


def hello(sock: socket.socket) -> Channel[m.ToClient]:
    channel: Channel[m.ToClient] = Channel(sock, m.ToClient)
    channel.send(m.Hello(protocol=PROTOCOL_VERSION, fxpool=__version__, pid=os.getpid()))
    frame = channel.receive()
    assert frame is not None
    assert isinstance(frame[0], m.Welcome)
    return channel


GREETING = b"".join(encode(m.Hello(protocol=PROTOCOL_VERSION, fxpool=__version__, pid=1)))


def garbage() -> Iterator[bytes]:
    yield b"GET / HTTP/1.1\r\n\r\n" * 10
    yield b"\0" * 1000
    yield HEADER.pack(MAGIC, PROTOCOL_VERSION, 0, 0, 1, 1 << 40)
    yield HEADER.pack(MAGIC, PROTOCOL_VERSION, 0, 0, 3, 0) + b"abc"
    yield b"".join(encode(m.Cancel(job=1)))  # before hello
    yield GREETING + GREETING
    yield GREETING + b"garbage that is long enough for a header"
    yield GREETING + b"".join(encode(m.Submit(job=1, function="f:g", spec=m.JobSpec(label="x")))) * 2
    source = random.Random(1)
    for _ in range(20):
        yield source.randbytes(source.randint(20, 3000))
    for _ in range(30):
        flipped = bytearray(GREETING)
        flipped[source.randrange(8)] ^= 1 << source.randrange(8)
        yield bytes(flipped)


def test_garbage_ends_its_connection_and_nothing_else(client: PoolClient, address: str) -> None:
    for data in garbage():
        with connect(address) as sock:
            try:
                sock.sendall(data)
            except ConnectionError:
                pass
            assert ended(sock)
    assert alive(client)
    log = (Path(address).parent / "server.log").read_text()
    assert "not a frame of fxpool" in log
    assert "Traceback" not in log


def test_connections_cut_at_every_byte(client: PoolClient, address: str) -> None:
    for cut in range(len(GREETING)):
        with connect(address) as sock:
            sock.sendall(GREETING[:cut])
    assert alive(client)
    assert until(lambda: client.status()["clients"] == [os.getpid()])


def test_another_version_is_refused_with_the_reason(client: PoolClient, address: str) -> None:
    with connect(address) as sock:
        channel: Channel[m.ToClient] = Channel(sock, m.ToClient)
        channel.send(m.Hello(protocol=PROTOCOL_VERSION, fxpool="0.0.0-other", pid=1))
        frame = channel.receive()
        assert frame is not None
        assert isinstance(frame[0], m.Refused)
        assert "0.0.0-other" in frame[0].reason
        assert channel.receive() is None
    with connect(address) as sock:
        sock.sendall(HEADER.pack(MAGIC, 77, 0, 0, 1, 0))
        channel = Channel(sock, m.ToClient)
        frame = channel.receive()
        assert frame is not None
        assert isinstance(frame[0], m.Refused)
        assert "version 77" in frame[0].reason
    assert alive(client)


def test_a_client_of_another_version_gets_a_protocol_error(
    make_client: Callable[..., PoolClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "__version__", "0.0.0-other")
    client = make_client()
    with pytest.raises(ProtocolError, match="refused"):
        client.submit("pool_jobs:echo", b"", JobSpec(label="x")).result()
    monkeypatch.undo()


def test_several_clients_are_served_and_their_jobs_end_with_them(
    client: PoolClient, address: str, place: Place
) -> None:
    with connect(address) as sock:
        channel = hello(sock)
        mark = place.mark("mark-other")
        channel.send(m.Submit(job=1, function="pool_jobs:sleep", spec=m.JobSpec(label="other")), str(mark).encode())
        assert until(mark.exists)
        assert alive(client)
        assert len(client.status()["clients"]) == 2
    assert until(lambda: len(place.processes()) == 2)
    assert alive(client)


def test_a_second_client_keeps_the_server_until_it_leaves(place: Place) -> None:
    first = PoolClient(place.config())
    first.start(wait=True)
    directory = first.status()["directory"]
    with connect(os.path.join(directory, "socket")) as sock:
        hello(sock)
        assert alive(first)
        first.close()  # Shutdown is for everybody
        assert ended(sock)


def test_unknown_numbers_are_ignored(client: PoolClient, address: str) -> None:
    with connect(address) as sock:
        channel = hello(sock)
        channel.send(m.Cancel(job=12345))
        channel.send(m.StatusQuery(number=9))
        while True:
            frame = channel.receive()
            assert frame is not None
            if isinstance(frame[0], m.Status):
                break
    assert alive(client)


def _soft_limit(pid: int) -> int:
    return resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]


def test_a_server_may_open_as_many_files_as_it_can_and_its_workers_as_before(client: PoolClient) -> None:
    client.start(wait=True)
    status = client.status()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert _soft_limit(status["server_pid"]) >= min(hard, 65536)
    assert _soft_limit(status["zygote"]["pid"]) == soft


def test_under_a_low_limit_the_first_clients_are_served(client: PoolClient, address: str) -> None:
    server = client.status()["server_pid"]
    opened = len(os.listdir(f"/proc/{server}/fd"))
    limits = resource.prlimit(server, resource.RLIMIT_NOFILE)
    resource.prlimit(server, resource.RLIMIT_NOFILE, (2 * opened, limits[1]))
    try:
        with connect(address) as sock:
            hello(sock)
    finally:
        resource.prlimit(server, resource.RLIMIT_NOFILE, limits)


def test_clients_beyond_the_limit_are_refused_with_the_reason(client: PoolClient, address: str) -> None:
    server = client.status()["server_pid"]
    _, hard = resource.prlimit(server, resource.RLIMIT_NOFILE)
    resource.prlimit(server, resource.RLIMIT_NOFILE, (128, hard))
    channels: list[Channel[m.ToClient]] = []
    sockets: list[socket.socket] = []
    refused = ""
    try:
        while not refused and len(sockets) < 128:
            sockets.append(connect(address))
            channel: Channel[m.ToClient] = Channel(sockets[-1], m.ToClient)
            channel.send(m.Hello(protocol=PROTOCOL_VERSION, fxpool=__version__, pid=os.getpid()))
            frame = channel.receive()
            assert frame is not None
            refused = frame[0].reason if isinstance(frame[0], m.Refused) else ""
            channels.append(channel)
        assert 64 < len(channels) < 100 and "no file descriptors for more" in refused
        assert alive(client), "those who are there are served"
    finally:
        for one in sockets:
            one.close()
    assert until(lambda: len(os.listdir(f"/proc/{server}/fd")) < 40)
    with connect(address) as sock:
        hello(sock)
