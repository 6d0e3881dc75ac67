"""Who is answered what: a real dashboard, over real sockets, with bytes that no browser would send."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboard_place import EVIL, Place, ask, dashboard, fill, place, pool

from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore
from fxpool.dashboard.web import _PATIENCE
from fxpool.pool import JobSpec


@pytest.fixture(scope="module")
def directories() -> Iterator[Place]:
    with place() as made:
        yield made


@pytest.fixture(scope="module")
def entries(directories: Place) -> list[Entry]:
    return [*fill(directories, 3), *fill(directories, 1, first=100, label=EVIL)]


@pytest.fixture(scope="module")
def address(directories: Place, entries: list[Entry]) -> Iterator[str]:
    with dashboard(directories) as found:
        yield found


def parts(address: str) -> tuple[int, str]:
    """(port, the path with the secret)"""
    _, _, rest = address.partition("://127.0.0.1:")
    port, _, path = rest.partition("/")
    return int(port), f"/{path}"


def get(address: str, path: str = "", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    port, secret = parts(address)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path if path.startswith("/") else secret + path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def events(address: str, count: int = 1) -> list[dict[str, Any]]:
    """The first messages of the stream."""
    port, secret = parts(address)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", secret + "events")
        answer = connection.getresponse()
        assert answer.getheader("Content-Type", "").startswith("text/event-stream")
        found: list[dict[str, Any]] = []
        while len(found) < count:
            line = answer.readline()
            if line.startswith(b"data: "):
                found.append(json.loads(line[6:]))
        return found
    finally:
        connection.close()


def told(address: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first message for which `condition` holds; the limit is only there to end a broken test."""
    end = time.monotonic() + 30
    while not condition(message := events(address)[0]):
        assert time.monotonic() < end, message
        time.sleep(0.05)
    return message


def test_the_page_and_its_headers(address: str) -> None:
    status, headers, body = get(address)
    assert status == 200 and b"@NONCE@" not in body and headers["cache-control"] == "no-store"
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    nonce = policy.split("script-src 'nonce-")[1].split("'")[0]
    assert body.count(f'nonce="{nonce}"'.encode()) == 2
    assert nonce not in get(address)[1]["content-security-policy"], "another one each time"
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers and "set-cookie" not in headers
    text = body.decode()
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text


@pytest.mark.parametrize("path", ["/", "/wrong/", "/wrong/events", "//", "/%2e%2e/", "/favicon.ico"])
def test_without_the_secret_there_is_nothing(address: str, path: str) -> None:
    assert get(address, path)[0] == 403
    nearly = parts(address)[1][:-2] + "/"
    assert get(address, nearly)[0] == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "127.0.0.1:1", ""])
def test_under_another_name_there_is_nothing(address: str, host: str) -> None:
    for path in ("", "events"):
        status, _, body = get(address, path, Host=host)
        assert status == 403 and b"127.0.0.1" in body, "DNS rebinding"
    port = parts(address)[0]
    assert get(address, Host=f"localhost:{port}")[0] == 200
    assert ask(address, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 403")


def test_each_start_has_another_secret(directories: Place, address: str) -> None:
    with dashboard(directories) as other:
        assert get(other)[0] == 200
        assert get(other, parts(address)[1])[0] == get(address, parts(other)[1])[0] == 403


def test_a_browser_gets_the_address_unless_there_is_to_be_none(directories: Place, tmp_path: Path) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\nprintf "$1" >> {opened}\n')
    browser.chmod(0o700)
    with dashboard(directories, browser=str(browser)) as address:
        pass
    assert opened.read_text() == address
    with dashboard(directories, "--no-open", browser=str(browser)):
        pass
    assert opened.read_text() == address


def test_no_other_machine_can_connect(address: str) -> None:
    """A server that listens on all addresses has this one as well."""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", parts(address)[0]))


def test_a_look_changes_nothing(directories: Place, address: str) -> None:
    """Not even a damaged blob, which other readers set aside."""

    def state() -> list[tuple[str, int, int]]:
        found = [(path, path.lstat()) for path in (directories.base, *directories.base.rglob("*"))]
        return sorted((str(path), status.st_mtime_ns, status.st_ctime_ns) for path, status in found)

    store = LocalStore(str(directories.store))
    key = hashlib.sha256(b"damaged").hexdigest()
    entry = store.publish(Entry(key=key, content={"level": "aot"}), {"result": b"some code"})
    Path(store.root, entry.blobs["result"].relative_path()).write_bytes(b"other one")
    try:
        told(address, lambda message: message["store"]["entries"] == 5)
        before = state()
        for path in ("", f"entry/{key}/{entry.name}", "entry/a/b"):
            get(address, path)
        said = json.loads(get(address, f"code/{key}/{entry.name}")[2])
        assert "is missing or damaged" in said["error"]
        assert state() == before
    finally:
        store.remove(key)
        told(address, lambda message: message["store"]["entries"] == 4)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE"])
def test_everything_is_only_read(address: str, method: str) -> None:
    status, headers, _ = get(address, method=method)
    assert (status, headers["allow"]) == (405, "GET")


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd", "entry/../../../etc/passwd/x", "entry/%2e%2e%2f%2e%2e/x", "page.html", "entry/", "entry",
        f"entry/{'a' * 64}", f"entry/{'A' * 64}/{'b' * 64}", f"entry/{'a' * 64}/../{'b' * 64}", "code/x/y", "events/x",
        f"entry/{'a' * 64}/{'b' * 63}%00", f"code/{'a' * 64}/{'b' * 64}", f"entry/{'a' * 64}/{'b' * 64}",
    ],
)  # fmt: skip
def test_a_path_is_never_a_file_s_name(address: str, path: str) -> None:
    port, secret = parts(address)
    # Not through http.client, which tidies paths.
    head = f"GET {secret}{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
    assert ask(address, head.encode()).startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize(
    "data, status",
    [
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 5_000 + b"\r\n", b"431"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello", b"400"),
    ],
)
def test_too_much_or_nonsense_is_refused(address: str, data: bytes, status: bytes) -> None:
    try:
        answer = ask(address, data)
    except ConnectionResetError:
        answer = b""  # it closed before it had read everything, which resets what it had said
    assert answer == b"" or answer.startswith(b"HTTP/1.1 " + status)
    assert get(address)[0] == 200


def test_slow_clients_keep_nobody_waiting(address: str) -> None:
    port = parts(address)[0]
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
    try:
        for sock in slow:
            sock.sendall(b"GET / HTT")
        # One that asks for the stream and never reads it.
        slow[0].sendall(f"P/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        assert get(address)[0] == 200
        told(address, lambda message: message["store"]["entries"] == 4)
    finally:
        for sock in slow:
            sock.close()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: "])
def test_connections_without_a_request_give_way(address: str, said: bytes) -> None:
    """Any user of the machine can connect, without the secret."""
    port, _ = parts(address)
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
    try:
        for one in silent:
            with contextlib.suppress(ConnectionError):  # it gave way
                one.sendall(said)
        for _ in range(5):
            assert get(address)[0] == 200
        silent[0].settimeout(_PATIENCE / 2)
        with contextlib.suppress(ConnectionResetError):
            assert silent[0].recv(1) == b"", "closed before its time"
    finally:
        for one in silent:
            one.close()
    assert get(address)[0] == 200


def test_no_server_is_said_and_the_store_is_there(address: str) -> None:
    message = told(address, lambda message: message["store"]["entries"] == 4)
    assert message["servers"] == [] and message["jobs"] == [] and message["first"] is True
    assert {row["function"] for row in message["rows"]} >= {"graph_0", "graph_1", f"{EVIL}_100"}
    assert message["store"]["reasons"] == {"inputs": 1} and message["store"]["first"] == 3


def test_an_entry_in_detail(address: str, entries: list[Entry]) -> None:
    first, before, later, evil = entries
    status, headers, body = get(address, f"entry/{later.key}/{later.name}")
    found = json.loads(body)
    assert status == 200 and headers["content-type"].startswith("application/json")
    assert found["label"] == "graph 2" and found["before"]["key"] == before.key
    assert found["before"]["differs"] == [
        {"name": "inputs", "lines": ["- graph inputs 1", "+ graph inputs 2"]},
    ]
    assert json.loads(get(address, f"entry/{first.key}/{first.name}")[2])["before"] is None
    assert json.loads(get(address, f"entry/{evil.key}/{evil.name}")[2])["label"] == f"{EVIL} 100"


def test_jobs_pass_by_and_a_server_is_replaced(directories: Place, address: str) -> None:
    names = set()
    for number in range(2):
        with pool(directories) as client:
            client.submit("pool_jobs:echo", b"", JobSpec(label=f"echo {number}")).result()
            pid = client.status()["server_pid"]

            def found(message: dict[str, Any], pid: int = pid, number: int = number) -> bool:
                running = [one.get("server_pid") for one in message["servers"]] == [pid]
                return running and any(job["label"] == f"echo {number}" and job["ended"] for job in message["jobs"])

            message = told(address, found)
            assert all(one["queued"] <= one["begun"] <= one["ended"] for one in message["jobs"])
            names.add(message["servers"][0]["id"])
        told(address, lambda message: not message["servers"])  # it leaves, and nobody keeps it
    assert len(names) == 2
    assert {job["label"] for job in events(address)[0]["jobs"]} == {"echo 0", "echo 1"}, "what it did is still known"
