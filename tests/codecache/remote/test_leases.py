"""Leases on real servers, by several clients; and the decisions of machines that wait, with a table in memory."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from remote_servers import answers, hangs, misbehaving, redis_and_s3, redis_server

from fxpool import counters
from fxpool.codecache import remote
from fxpool.codecache.remote import leases, remote_values
from fxpool.codecache.remote.access import RemoteAccess
from fxpool.codecache.remote.client import Client, Deadline, RemoteError
from fxpool.codecache.remote.leases import Lease, Leases

NAME = remote_values.lease_name("ab" * 32)
KEY = "ab" * 32
# Long enough for a loaded machine; nothing waits for it.
DELAY = 20.0
LONG = 60.0


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    with redis_and_s3() as addresses_by_kind:
        yield addresses_by_kind


@pytest.fixture(params=["redis", "s3"])
def connect(request: pytest.FixtureRequest, servers: dict[str, str]) -> Callable[[], Client]:
    """Connects to a remote that is of this test alone."""
    address = servers[request.param]
    if request.param == "s3":
        address += "/" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    else:
        import redis

        with redis.Redis.from_url(address) as client:
            client.flushall()
    return lambda: remote.connect(address, DELAY)


def deadline() -> Deadline:
    return Deadline(DELAY)


def counted(table: str = "leases") -> dict[str, int]:
    return {name: count for name, count in counters.snapshot()[table].items() if count}


# ---------------------------------------------------------------- clients


def test_a_lease_has_one_holder(connect: Callable[[], Client]) -> None:
    first, second = connect(), connect()
    assert not first.is_leased(NAME, LONG, deadline())
    assert first.lease(NAME, "a", LONG, deadline())
    assert not first.lease(NAME, "b", LONG, deadline()) and not second.lease(NAME, "b", LONG, deadline())
    assert second.is_leased(NAME, LONG, deadline())
    assert not second.renew(NAME, "b", LONG, deadline()) and not second.release(NAME, "b", deadline())
    assert second.is_leased(NAME, LONG, deadline())
    assert first.renew(NAME, "a", LONG, deadline()) and first.renew(NAME, "a", LONG, deadline())
    assert first.release(NAME, "a", deadline()) and not first.release(NAME, "a", deadline())
    assert not second.is_leased(NAME, LONG, deadline())
    assert second.lease(NAME, "b", LONG, deadline()) and not first.renew(NAME, "a", LONG, deadline())
    first.close()
    second.close()


def test_a_lease_lapses_without_renewal(connect: Callable[[], Client]) -> None:
    first, second = connect(), connect()
    assert first.lease(NAME, "a", 1.0, deadline())
    end = time.monotonic() + LONG
    while second.is_leased(NAME, 1.0, deadline()):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert second.lease(NAME, "b", 1.0, deadline())
    assert not first.renew(NAME, "a", 1.0, deadline()) and not first.release(NAME, "a", deadline())
    first.close()
    second.close()


def test_one_of_many_takes_a_lapsed_lease(connect: Callable[[], Client]) -> None:
    clients = [connect() for _ in range(4)]
    assert clients[0].lease(NAME, "before", 0.5, deadline())
    for client in clients:
        client.is_leased(NAME, 0.5, deadline())
    time.sleep(0.6)
    taken: list[bool] = []
    threads = [
        threading.Thread(
            target=lambda number=number, client=client: taken.append(
                client.lease(NAME, f"token {number}", 0.5, deadline())
            )
        )
        for number, client in enumerate(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert sorted(taken) == [False, False, False, True]


def test_in_s3_the_clock_is_that_of_the_machine_that_waits(servers: dict[str, str]) -> None:
    from fxpool.codecache.remote.s3_client import S3Client

    address, now = f"{servers['s3']}/clock", [1000.0]
    holder, waiter = S3Client(address, DELAY, clock=lambda: 5e9), S3Client(address, DELAY, clock=lambda: now[0])
    assert holder.lease(NAME, "a", 10.0, deadline())
    for _ in range(3):
        assert waiter.is_leased(NAME, 10.0, deadline())
        now[0] += 9.0
        assert waiter.is_leased(NAME, 10.0, deadline()) and not waiter.lease(NAME, "b", 10.0, deadline())
        assert holder.renew(NAME, "a", 10.0, deadline())
    assert waiter.is_leased(NAME, 10.0, deadline())
    now[0] += 10.0
    assert not waiter.is_leased(NAME, 10.0, deadline())
    assert holder.renew(NAME, "a", 10.0, deadline())
    assert not waiter.lease(NAME, "b", 10.0, deadline()), "it lives after all"
    now[0] += 10.0
    assert waiter.lease(NAME, "b", 10.0, deadline()) and not holder.renew(NAME, "a", 10.0, deadline())


def test_a_lease_stays_the_parent_s_after_a_fork(servers: dict[str, str]) -> None:
    address = servers["redis"]

    def connect(seconds: float) -> Client:
        return remote.connect(address, seconds)

    with contextlib.closing(connect(DELAY)) as other:
        made = Leases(RemoteAccess(connect, DELAY), lambda _: False)
        _, lease = made.wait("cd" * 32, lambda: None, 0.0)
        assert lease is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
            child = os.fork()
        if child == 0:
            try:
                made.release(lease)
                made.close()
                os._exit(threading.active_count() - 1)
            finally:
                os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert other.is_leased(lease.name, LONG, deadline())
        made.release(lease)
        _until(lambda: not other.is_leased(lease.name, LONG, deadline()))
        made.close()


def test_a_redis_without_the_rights_for_leases_stays_in_use(tmp_path: Path) -> None:
    import redis

    with redis_server(tmp_path) as url:
        with redis.Redis.from_url(url) as client:
            client.execute_command("ACL", "SETUSER", "old", "on", ">secret", "~fxpool/*", "+getrange", "+set")
        address = url.replace("unix://", "unix://old:secret@")
        access = RemoteAccess(lambda seconds: remote.connect(address, seconds), DELAY)
        made = Leases(access, lambda _: False)
        _, lease = made.wait(KEY, lambda: None, 0.0)
        assert lease is not None
        made.release(lease)
        _until(lambda: counted("remote") == {"error:lease_answer": 1})
        assert made.wait(KEY, lambda: None, LONG) == (None, None), "no more leases, and no waits for them"
        assert access.allowance() == DELAY and counted() == {"taken": 1}
        made.close()


# ---------------------------------------------------------------- waiting


class Table:
    """The leases of a remote in memory, for any number of clients."""

    def __init__(self) -> None:
        self.tokens: dict[str, str] = {}
        self.renewed = 0
        self.error: RemoteError | None = None

    def lease(self, name: str, token: str, seconds: float, deadline: Deadline) -> bool:
        self._fail()
        return self.tokens.setdefault(name, token) == token

    def is_leased(self, name: str, seconds: float, deadline: Deadline) -> bool:
        self._fail()
        return name in self.tokens

    def renew(self, name: str, token: str, seconds: float, deadline: Deadline) -> bool:
        self._fail()
        self.renewed += 1
        return self.tokens.get(name) == token

    def release(self, name: str, token: str, deadline: Deadline) -> bool:
        self._fail()
        return self.tokens.get(name) == token and bool(self.tokens.pop(name))

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        pass


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def machines(table: Table) -> Iterator[Callable[..., Leases]]:
    """Makes the leases of a machine."""
    every: list[Leases] = []

    def machine(uploading: Callable[[Any], bool] = lambda _: False, **settings: Any) -> Leases:
        client: Any = table
        delay = settings.pop("delay", DELAY)
        every.append(Leases(RemoteAccess(lambda _: client, delay, **settings), uploading))
        return every[-1]

    yield machine
    for made in every:
        made.close()


def nothing() -> str | None:
    return None


def _until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


def leased(machine: Leases) -> Lease:
    result, lease = machine.wait(KEY, nothing, LONG)
    assert result is None and lease is not None
    return lease


def test_the_first_compiles_and_the_next_gets_its_entry(table: Table, machines: Callable[..., Leases]) -> None:
    first, second = machines(), machines()
    lease = leased(first)
    entries: list[str] = []

    def compile_and_upload() -> None:
        time.sleep(0.2)
        entries.append("entry")
        first.release(lease)

    thread = threading.Thread(target=compile_and_upload)
    thread.start()
    assert second.wait(KEY, lambda: entries[0] if entries else None, LONG) == ("entry", None)
    thread.join(LONG)
    assert counted() == {"taken": 1, "waited": 1}
    assert not table.tokens


def test_an_entry_that_came_since_the_lookup_is_used(table: Table, machines: Callable[..., Leases]) -> None:
    machine = machines()
    assert machine.wait(KEY, lambda: "entry", LONG) == ("entry", None)
    _until(lambda: not table.tokens)
    assert counted() == {}


def test_an_error_of_a_look_ends_the_lease(table: Table, machines: Callable[..., Leases]) -> None:
    def broken() -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        machines().wait(KEY, broken, LONG)
    _until(lambda: not table.tokens)


def test_a_lease_is_held_until_the_entry_is_uploaded(table: Table, machines: Callable[..., Leases]) -> None:
    waiting = {KEY}
    machine = machines(lambda keys: not waiting.isdisjoint(keys))
    lease = leased(machine)
    machine.release(lease, after=[KEY, "other"])
    time.sleep(0.3)
    assert table.tokens
    waiting.clear()
    _until(lambda: not table.tokens)


def test_a_lease_is_renewed_and_a_lapsed_one_is_taken_over(
    table: Table, machines: Callable[..., Leases], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "PERIOD", 0.3)
    first, second = machines(), machines()
    held = [leased(first)]
    _until(lambda: table.renewed >= 3)
    table.tokens.clear()  # as the server does once renewals stay away
    held.append(leased(second))
    _until(lambda: counted().get("lost") == 1)
    assert counted() == {"taken": 2, "lost": 1}


def test_a_waiting_machine_takes_over(table: Table, machines: Callable[..., Leases]) -> None:
    table.tokens[NAME] = "of a machine that dies"
    timer = threading.Timer(0.2, table.tokens.clear)
    timer.start()
    leased(machines())
    timer.join()
    assert counted() == {"taken_over": 1}


def test_a_wait_ends_after_the_estimate_and_not_again_and_again(table: Table, machines: Callable[..., Leases]) -> None:
    table.tokens[NAME] = "of a machine that hangs"
    machine = machines()
    start = time.monotonic()
    for _ in range(leases.MOST_IN_VAIN):
        assert machine.wait(KEY, nothing, 0.2) == (None, None)
    assert time.monotonic() - start >= 0.2 * leases.MOST_IN_VAIN
    start = time.monotonic()
    assert machine.wait(KEY, nothing, LONG) == (None, None)
    assert time.monotonic() - start < LONG / 2, "it has waited in vain too often"
    assert counted() == {"gave_up": leases.MOST_IN_VAIN + 1}


def test_a_lease_that_was_never_released_lapses(
    table: Table, machines: Callable[..., Leases], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an interrupt between the take and the compile."""
    monkeypatch.setattr(leases, "PERIOD", 0.15)
    machine = machines()
    lease = leased(machine)
    _until(lambda: table.renewed >= 2)
    del lease
    gc.collect()

    def renewed_since() -> int:
        before = table.renewed
        time.sleep(0.3)
        return table.renewed - before

    _until(lambda: renewed_since() == 0)


def test_a_process_that_ends_does_not_wait(table: Table, machines: Callable[..., Leases]) -> None:
    table.tokens[NAME] = "of another"
    assert machines().wait(KEY, nothing, LONG, lambda: True) == (None, None)


def test_a_process_that_ends_releases_its_leases(table: Table, machines: Callable[..., Leases]) -> None:
    machine = machines(lambda _: True)
    machine.release(leased(machine), after=[KEY])
    machine.close()
    _until(lambda: not table.tokens)
    assert machine.wait(KEY, nothing, LONG) == (None, None)


def test_a_remote_that_fails_while_a_machine_waits_costs_no_more_than_the_wait(
    table: Table, machines: Callable[..., Leases]
) -> None:
    table.tokens[NAME] = "of another"

    def fail() -> None:
        table.error = RemoteError("closed")

    timer = threading.Timer(0.2, fail)
    timer.start()
    machine = machines()
    start = time.monotonic()
    assert machine.wait(KEY, nothing, LONG) == (None, None)
    assert time.monotonic() - start < LONG / 2
    timer.join()
    assert counted() == {"gave_up": 1}
    assert counted("remote") == {"error:lease_closed": 1, "left_alone": 1}
    assert machine.wait(KEY, nothing, LONG) == (None, None), "the remote is not in use"


@pytest.mark.parametrize("behaviour", ["hangs", "senseless", "dead"])
def test_a_server_that_gives_no_leases_costs_one_delay(behaviour: str) -> None:
    acts = {"hangs": hangs, "senseless": answers(b"$3\r\nabc\r\n"), "dead": lambda connection: connection.close()}
    with misbehaving(acts[behaviour]) as server:
        address = f"redis://127.0.0.1:{server.port}/0"
        made = Leases(RemoteAccess(lambda seconds: remote.connect(address, seconds), 0.5), lambda _: False)
        start = time.monotonic()
        results = [made.wait(KEY, nothing, 2.0) for _ in range(4)]
        if behaviour == "senseless":
            assert results[0][1] is not None, "any answer but none means that it was stored"
        else:
            assert results == [(None, None)] * 4
        assert time.monotonic() - start < LONG
        made.close()
