"""A client that does not read costs the server some memory, and itself what it did not read."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from pool_place import until

from fxpool import __version__
from fxpool.errors import ProtocolError
from fxpool.pool import JobSpec, PoolClient
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.connection import Connection, PeerNotReadingError
from fxpool.pool.wire.protocol import PROTOCOL_VERSION, Channel, encode

MB = 1 << 20
CAP = 1 << 16


def hello(client: PoolClient) -> tuple[socket.socket, Channel[m.ToClient]]:
    client.start(wait=True)
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(Path(client.status()["directory"]) / "socket"))
    sock.settimeout(50)
    channel: Channel[m.ToClient] = Channel(sock, m.ToClient)
    channel.send(m.Hello(protocol=PROTOCOL_VERSION, fxpool=__version__, pid=os.getpid()))
    assert channel.receive() is not None
    return sock, channel


def test_what_a_job_logs_is_dropped_while_nobody_reads_it_and_that_is_said(client: PoolClient) -> None:
    sock, channel = hello(client)
    with sock:
        server = psutil.Process(client.status()["server_pid"])
        before = server.memory_info().rss
        channel.send(
            m.Submit(job=1, function="pool_jobs:flood", levels={"": 10}, spec=m.JobSpec(label="the flood")),
            b"9000 60000",
        )
        assert until(lambda: (facts := client.status())["counters"]["jobs"] and not facts["waiting"], 50), (
            client.status()
        )
        assert client.status()["counters"]["dropped_records"] > 1000
        assert server.memory_info().rss - before < 250 * MB
        records: list[m.LogRecord] = []
        while not isinstance(message := _next(channel), m.Done):
            if isinstance(message, m.LogRecord):
                records.append(message)
        dropped = client.status()["counters"]["dropped_records"]
        assert len(records) == 9000 - dropped + 1
        assert records[-1].message.startswith(f"{dropped} records and warnings of job 'the flood' were dropped")
        log = (Path(client.status()["directory"]) / "server.log").read_text()
        assert f"dropping log records of 'the flood': client {os.getpid()} is not reading its socket" in log


def _next(channel: Channel[m.ToClient]) -> m.ToClient:
    frame = channel.receive()
    assert frame is not None
    return frame[0]


def test_what_a_job_logs_reaches_who_reads(client: PoolClient, caplog: pytest.LogCaptureFixture) -> None:
    job = client.submit("pool_jobs:flood", b"500 2000", JobSpec(label="flood"))
    assert job.result(timeout=50) == b"through"
    assert len([record for record in caplog.records if record.name == "pool_jobs"]) == 500
    assert client.status()["counters"]["dropped_records"] == 0


@pytest.mark.slow
def test_questions_of_who_does_not_read_the_answers_are_not_read_either(client: PoolClient) -> None:
    sock, _ = hello(client)
    with sock:
        server = psutil.Process(client.status()["server_pid"])
        before = server.memory_info().rss
        question = b"".join(encode(m.StatusQuery(number=1))) * 1000
        sock.settimeout(3.0)
        with pytest.raises((TimeoutError, ConnectionError)):
            while True:
                sock.sendall(question)
        assert server.memory_info().rss - before < 250 * MB
    assert client.submit("pool_jobs:echo", b"x", JobSpec(label="x")).result(timeout=50) == b"x"


# ---------------------------------------------------------------- one connection


def connected(
    talk: Callable[[Connection[m.ToServer], socket.socket, list[Exception | None]], object], patience: float
) -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ended: list[Exception | None] = []
        connection: Connection[m.ToServer] = Connection(
            ours, m.ToServer, lambda *_: None, ended.append, outbox_cap=CAP, patience=patience
        )
        with theirs:
            await talk(connection, theirs, ended)  # type: ignore[misc]
            connection.close()

    asyncio.run(asyncio.wait_for(run(), 40))


def test_who_never_reads_is_given_up() -> None:
    async def talk(connection: Connection[m.ToServer], peer: socket.socket, ended: list[Exception | None]) -> None:
        while not connection.full:
            connection.send(m.Pong(), b"x" * 1000)
        while not ended:
            await asyncio.sleep(0.01)
        assert isinstance(ended[0], PeerNotReadingError) and isinstance(ended[0], ProtocolError)
        assert connection.closed

    connected(talk, 0.1)


def test_who_reads_slowly_is_not() -> None:
    async def talk(connection: Connection[m.ToServer], peer: socket.socket, ended: list[Exception | None]) -> None:
        connection.send(m.Pong(), b"x" * (4 * MB))
        assert connection.full
        taken = 0
        while connection.full:
            taken += len(peer.recv(1 << 14))
            await asyncio.sleep(0.01)
        assert taken > 3 * MB and not ended
        connection.send(m.Pong())

    connected(talk, 0.4)


def test_who_is_to_be_closed_after_the_last_word_does_not_have_to_read_it() -> None:
    async def talk(connection: Connection[m.ToServer], peer: socket.socket, ended: list[Exception | None]) -> None:
        connection.send(m.Pong(), b"x" * (4 * MB))
        connection.close(after_sending=True)
        assert not connection.closed
        while not connection.closed:
            await asyncio.sleep(0.01)

    connected(talk, 0.1)
