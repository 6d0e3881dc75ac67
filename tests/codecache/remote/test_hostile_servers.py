"""Servers that refuse, hang, dawdle, lie or send without end: each costs a bounded delay once, and is no error."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import remote_servers
from remote_servers import answers, closes_at_once, cut_short, floods, free_port, hangs, misbehaving

from fxpool import counters
from fxpool.codecache import remote
from fxpool.codecache.bundle.authentication import KEY_BYTES, Keyring
from fxpool.codecache.remote import breaker, pending_uploads
from fxpool.codecache.remote.remote_level import RemoteLevel
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore

KEYS = [hashlib.sha256(bytes([number])).hexdigest() for number in range(3)]
RING = Keyring([b"k" * KEY_BYTES])
# Seconds; every test with a server that does not answer takes one of them.
DELAY = 0.4

Behaviour = Callable[[socket.socket], None]


def any_fits(entry: Entry) -> bool:
    return True


def counted() -> dict[str, int]:
    return {name: count for name, count in counters.snapshot()["remote"].items() if count}


@contextlib.contextmanager
def level_of(address: str, **settings: Any) -> Iterator[RemoteLevel]:
    level = RemoteLevel(lambda seconds: remote.connect(address, seconds), RING, **{"delay": DELAY, **settings})
    try:
        yield level
    finally:
        level.close()


@pytest.fixture
def s3_environment(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], str]:
    """Makes an address of S3 at a port."""

    def at(port: int) -> str:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        return "s3://compiled/x"

    return at


def asked_three_times(level: RemoteLevel) -> dict[str, int]:
    """What is counted of three looks, of which only the first may reach the remote."""
    for key in KEYS:
        assert level.find([key], any_fits) is None
    assert level.state != "closed"
    counts = counted()
    assert counts.pop("not_asked") == 2 and counts.pop("left_alone") == 1
    return counts


# What each says to anything, and what that is counted as. Redis' protocol.
REDIS: dict[str, tuple[Behaviour, str]] = {
    "hangs": (hangs, "timeout"),
    "closes at once": (closes_at_once, "closed"),
    "a byte now and then": (answers(b"$", b"9", b"9", *[b"9"] * 100, pause=0.05), "timeout"),
    "an answer without an end": (cut_short(b"*2\r\n$64\r\nabcdef"), "closed"),
    "claims 9 TB": (answers(b"$9999999999999\r\nabc"), "timeout"),
    "claims a trillion names": (answers(b"*1000000000000\r\n"), "timeout"),
    "claims less than nothing": (answers(b"$-77\r\n"), "timeout"),
    "no protocol": (answers(b"HTTP/1.1 200 OK\r\n\r\n"), "answer"),
    "sends without end": (floods(b"$9999999999999\r\n"), "too_large"),
    "a line without end": (floods(b"+"), "too_large"),
    "an error": (answers(b"-ERR \x1b[31mno\r\n"), "answer"),
}


@pytest.mark.parametrize("name", REDIS)
def test_a_redis_server_that_misbehaves_is_asked_once(name: str) -> None:
    behave, reason = REDIS[name]
    with misbehaving(behave) as server, level_of(f"redis://127.0.0.1:{server.port}/0") as level:
        counts = asked_three_times(level)
        assert server.connections == 1
    assert counts == {f"error:{reason}": 1}


def _http(head: str, body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {head}\r\n\r\n".encode() + body


# The same for HTTP.
HTTP: dict[str, tuple[Behaviour, tuple[str, ...]]] = {
    "hangs": (hangs, ("timeout", "closed")),
    "closes at once": (closes_at_once, ("closed",)),
    "a byte now and then": (answers(*[b"H"] * 100, pause=0.05), ("timeout", "closed", "answer")),
    "an answer without an end": (cut_short(_http("200 OK\r\nContent-Length: 100", b"<List")), ("closed", "answer")),
    "claims 9 TB": (answers(_http("200 OK\r\nContent-Length: 9999999999999", b"<List")), ("too_large",)),
    "no XML": (answers(_http("200 OK\r\nContent-Length: 3", b"abc")), ("answer",)),
    "says no": (answers(_http("403 Forbidden\r\nContent-Length: 0")), ("answer",)),
    "is broken": (answers(_http("500 Oh\r\nContent-Length: 0")), ("answer",)),
    "sends to itself": (answers(_http("307 There\r\nLocation: /again\r\nContent-Length: 0")), ("answer", "closed")),
}


@pytest.mark.parametrize("name", HTTP)
def test_an_s3_server_that_misbehaves_is_asked_once(name: str, s3_environment: Callable[[int], str]) -> None:
    behave, reasons = HTTP[name]
    with misbehaving(behave) as server, level_of(s3_environment(server.port)) as level:
        counts = asked_three_times(level)
    assert list(counts.values()) == [1] and next(iter(counts)) in [f"error:{reason}" for reason in reasons]


def test_a_port_where_nobody_listens(s3_environment: Callable[[int], str]) -> None:
    for address in (f"redis://127.0.0.1:{free_port()}/0", "unix:///nowhere/redis.sock", s3_environment(free_port())):
        counters.reset()
        with level_of(address) as level:
            assert asked_three_times(level) == {"error:unreachable": 1}


# A length that is not the body's: HTTP lets chunks win.
_FLOOD = _http(
    "200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\nLast-Modified: Thu, 26 Nov 2026 13:00:00 GMT",
    b"ffffffffff\r\n",
)


@pytest.mark.parametrize("kind", ["redis", "s3"])
def test_of_a_flood_little_is_taken(kind: str, s3_environment: Callable[[int], str]) -> None:
    sent: list[int] = []
    behave = floods(b"$9999999999999\r\n" if kind == "redis" else _FLOOD, sent)
    with misbehaving(behave) as server:
        address = f"redis://127.0.0.1:{server.port}/0" if kind == "redis" else s3_environment(server.port)
        with level_of(address, delay=20.0) as level:
            assert level.find(KEYS[:1], any_fits) is None
    assert counted() == {"error:too_large": 1, "left_alone": 1}
    assert 0 < sum(sent) < 16 << 20, "what the system's buffers hold, and no more"


def test_a_name_that_is_not_resolved_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """getaddrinfo has no time limit."""
    over = threading.Event()

    def waits(*_: object, **__: object) -> Any:
        over.wait(30)
        raise socket.gaierror("no")

    monkeypatch.setattr(socket, "getaddrinfo", waits)
    with level_of("redis://somewhere:6379/0") as level:
        assert asked_three_times(level) == {"error:timeout": 1}
        over.set()


def test_slow_misses_are_borne_until_they_have_cost_the_delay() -> None:
    """Each answer comes in time, and together they would cost more than the delay."""
    clock = [0.0]

    class Slow:
        def names(self, *_: object) -> list[str]:
            clock[0] += 0.6 * DELAY
            return []

        def close(self) -> None:
            pass

    connect: Any = lambda seconds: Slow()  # noqa: E731
    level = RemoteLevel(connect, RING, delay=DELAY, clock=lambda: clock[0])
    looks = 0
    while level.state == "closed":
        assert level.find(KEYS[:1], any_fits) is None
        looks += 1
    assert looks == 3
    assert counted() == {"misses": 3, "left_alone": 1}


def test_a_remote_that_is_back_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compiled meanwhile is uploaded then."""
    monkeypatch.setattr(breaker, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(breaker, "LONGEST_PAUSE", 0.05)
    port = free_port()
    store = LocalStore(str(tmp_path / "c"))
    entry = store.publish(Entry(key=KEYS[0]), {"result": b"code"})
    with level_of(f"redis://127.0.0.1:{port}/0", delay=10.0) as level:
        assert level.find(KEYS[:1], any_fits) is None
        assert level.state == "open"
        level.uploads.offer(store.root, entry.key, entry.name)
        assert not level.uploads.flush(1), "nobody waits for a remote that is away"
        with remote_servers.redis_server(tmp_path, port=port):
            end = threading.Event()
            while counted().get("writes") != 1:
                assert not end.wait(0.02)
            assert level.state == "closed"
            found = level.find(KEYS[:1], any_fits)
            assert found is not None and found.entry == entry
    assert pending_uploads.listed(store.root) == []


def test_a_remote_that_is_only_read_is_probed_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(breaker, "LONGEST_PAUSE", 0.05)
    port = free_port()
    with level_of(f"redis://127.0.0.1:{port}/0", delay=10.0, read_only=True) as level:
        assert level.find(KEYS[:1], any_fits) is None
        with remote_servers.redis_server(tmp_path, port=port):
            end = threading.Event()
            while level.state != "closed":
                assert level.find(KEYS[:1], any_fits) is None
                assert not end.wait(0.02)
    assert counted()["error:unreachable"] == 1


def test_an_upload_to_who_hangs_ends_with_the_process(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "c"))
    entry = store.publish(Entry(key=KEYS[0]), {"result": b"code"})
    with misbehaving(hangs) as server, level_of(f"redis://127.0.0.1:{server.port}/0") as level:
        level.uploads.offer(store.root, entry.key, entry.name)
        level.close()
        assert pending_uploads.listed(store.root) == [(entry.key, entry.name)]


ENDS = """
import sys
from fxpool.codecache.bundle.authentication import Keyring
from fxpool.codecache.store.entry import Entry
from fxpool.codecache import remote
from fxpool.codecache.remote.remote_level import RemoteLevel
from fxpool.codecache.store.store import LocalStore

address, root, key = sys.argv[1:]
store = LocalStore(root)
entry = store.publish(Entry(key=key), {"result": b"code"})
level = RemoteLevel(lambda seconds: remote.connect(address, seconds), Keyring([bytes(32)]), delay=60.0)
level.uploads.offer(store.root, entry.key, entry.name)
"""


def test_a_process_ends_while_it_uploads(tmp_path: Path, python: str) -> None:
    """Its exit waits for neither the upload nor a look, and the entry is left to the next process."""
    root = str(tmp_path / "c")
    with misbehaving(hangs) as server:
        address = f"redis://127.0.0.1:{server.port}/0"
        done = subprocess.run([python, "-c", ENDS, address, root, KEYS[0]], capture_output=True, timeout=60, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [key for key, _ in pending_uploads.listed(root)] == [KEYS[0]]


def test_a_client_that_panics_is_a_miss() -> None:
    class Panics:
        def names(self, *_: object) -> list[str]:
            raise _Panic

        def close(self) -> None:
            pass

    connect: Any = lambda seconds: Panics()  # noqa: E731
    level = RemoteLevel(connect, RING, delay=10.0)
    assert level.find(KEYS[:1], any_fits) is None
    assert counted() == {"error:_Panic": 1, "left_alone": 1}


class _Panic(BaseException):
    """What a client in another language raises need not be an Exception."""


@pytest.mark.parametrize("error", [RecursionError, OverflowError, MemoryError, AssertionError, _Panic, SystemExit])
def test_whatever_an_upload_ends_with_it_is_tried_again_only_after_a_pause(
    tmp_path: Path, error: type[BaseException]
) -> None:
    store = LocalStore(str(tmp_path / "c"))
    entries = [store.publish(Entry(key=key), {"result": b"code"}) for key in KEYS]
    tried: list[float] = []

    class Raises:
        def put(self, *_: object, **__: object) -> bool:
            tried.append(time.monotonic())
            raise error

        get = names = put

        def close(self) -> None:
            pass

    connect: Any = lambda seconds: Raises()  # noqa: E731
    level = RemoteLevel(connect, RING, delay=0.2)
    for entry in entries:
        level.uploads.offer(store.root, entry.key, entry.name)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        time.sleep(0.02)
        level.uploads.wake()
    assert len(tried) == 1 and level.state == "open", "the first probe comes after seconds"
    level.close()
    assert sorted(pending_uploads.listed(store.root)) == sorted((entry.key, entry.name) for entry in entries)
    assert counted()["error:upload_client"] == 1


def test_no_listing_is_asked_for(s3_environment: Callable[[int], str]) -> None:
    """Its answer could be of any length, and would be taken into memory."""
    asked: list[bytes] = []

    def listens(connection: socket.socket) -> None:
        asked.append(connection.recv(1 << 16))
        connection.sendall(_http("404 Not Found\r\nContent-Length: 0"))

    with misbehaving(listens) as server, level_of(s3_environment(server.port), delay=10.0) as level:
        assert level.find(KEYS[:1], any_fits) is None
    assert asked and not any(b"list" in request.split(b"\r\n")[0] for request in asked)
