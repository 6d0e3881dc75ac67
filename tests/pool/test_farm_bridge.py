"""The bridge between a server and a farm: it answers each job, and says when the farm is gone.

The test is the server, and plays the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
from pool_loops import LIMIT, on_a_loop, until

from fxpool.errors import ConfigurationError
from fxpool.farm import bridge
from fxpool.farm.addresses import engine_of, worker_of
from fxpool.farm.bridge import Bridge
from fxpool.farm.engine import Answer, EngineError
from fxpool.pool.wire import farm as f
from fxpool.pool.wire.connection import Connection
from fxpool.pool.wire.protocol import Channel

# The bridge's message between two tries.
AGAIN = "it did not answer the last time"
MACHINE = f.Machine(name="m", address="tcp://m", slots=2, jobs=0, builds={"torch": "1"})


class PlayedEngine:
    """An engine whose calls return or raise what the test sets."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.closed = False

    async def connect(self) -> None:
        self._plan.connections += 1
        _raise(self._plan.refusal)

    async def machines(self) -> list[f.Machine]:
        _raise(self._plan.silence)
        return [MACHINE]

    async def run(self, key: str, order: bytes, machines: Sequence[str], priority: int) -> bytes:
        self._plan.orders.append((key, order, list(machines), priority))
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._plan.answers[key] = answer
        try:
            return await answer
        except asyncio.CancelledError:
            self._plan.cancelled.append(key)
            raise

    async def close(self) -> None:
        self.closed = True
        await self._plan.may_close.wait()


class Plan:
    """Settings of all engines of a test, and their calls."""

    def __init__(self) -> None:
        self.engines: list[PlayedEngine] = []
        self.connections = 0
        self.refusal: Exception | None = None
        self.silence: Exception | None = None
        self.orders: list[tuple[str, bytes, list[str], int]] = []
        self.answers: dict[str, asyncio.Future[bytes]] = {}
        self.cancelled: list[str] = []
        self.may_close = asyncio.Event()
        self.may_close.set()

    def engine(self, address: str) -> PlayedEngine:
        assert address == "played://"
        self.engines.append(PlayedEngine(self))
        return self.engines[-1]


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


class Server:
    """The server's end of the socket."""

    def __init__(self, sock: socket.socket, plan: Plan) -> None:
        self.plan = plan
        self.received: list[tuple[f.FromBridge, bytes]] = []
        self.said_that_it_connects = 0
        self._connection: Connection[f.FromBridge] = Connection(sock, f.FromBridge, self._receive, lambda error: None)

    def _receive(self, message: f.FromBridge, payload: memoryview) -> None:
        if isinstance(message, f.Connecting):
            self.said_that_it_connects += 1
        else:
            self.received.append((message, bytes(payload)))

    def run(self, job: int, priority: int = 0) -> None:
        self._connection.send(
            f.Run(job=job, key=f"key {job}", priority=priority, machines=["tcp://m"]), f"order {job}".encode()
        )

    def withdraw(self, job: int) -> None:
        self._connection.send(f.Withdraw(job=job))

    def close(self) -> None:
        self._connection.close()

    @property
    def endings(self) -> list[tuple[f.FromBridge, bytes]]:
        """The ends of jobs."""
        return [each for each in self.received if isinstance(each[0], (f.Result, f.Lost))]

    @property
    def kinds(self) -> list[str]:
        """The kinds of messages, without repetitions."""
        names = [type(message).__name__ for message, _ in self.received]
        return [name for name, before in zip(names, ["", *names], strict=False) if name != before]


@contextlib.asynccontextmanager
async def running(monkeypatch: pytest.MonkeyPatch, plan: Plan | None = None) -> AsyncIterator[Server]:
    """A bridge that ends, with its engine closed, when the server does."""
    plan = plan or Plan()
    monkeypatch.setattr(bridge, "engine_of", plan.engine)
    monkeypatch.setattr(bridge, "PERIOD", 0.05)
    monkeypatch.setattr(bridge, "_AGAIN", 0.1)
    monkeypatch.setattr(bridge, "_LONGEST_AGAIN", 0.2)
    ours, theirs = socket.socketpair()
    server = Server(ours, plan)
    served = asyncio.ensure_future(Bridge(theirs, "played://").run())
    try:
        yield server
    finally:
        plan.may_close.set()
        server.close()
        await asyncio.wait_for(served, LIMIT)
    assert all(engine.closed for engine in plan.engines)


async def a_job(server: Server, job: int = 1) -> asyncio.Future[bytes]:
    """Have a job run; return the future of the engine's answer."""
    await until(lambda: server.kinds == ["Machines"])
    server.run(job)
    await until(lambda: f"key {job}" in server.plan.answers)
    return server.plan.answers[f"key {job}"]


def answer(**fields: Any) -> bytes:
    return msgspec.msgpack.encode(Answer(machine="m", seconds=1.5, **fields))


# ---------------------------------------------------------------- jobs


@on_a_loop
async def test_machines_are_listed_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as server:
        await until(lambda: len(server.received) >= 3)
        assert all(message == f.Machines(machines=[MACHINE]) for message, _ in server.received)
        assert server.plan.connections == 1


@on_a_loop
async def test_a_result_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as server:
        await until(lambda: server.received)
        server.run(1, priority=3)
        server.run(2)
        await until(lambda: len(server.plan.answers) == 2)
        assert server.plan.orders[0] == ("key 1", b"order 1", ["tcp://m"], 3)
        server.plan.answers["key 2"].set_result(answer(payload=b"two"))
        await until(lambda: server.endings)
        server.plan.answers["key 1"].set_result(answer(payload=b""))
        await until(lambda: len(server.endings) == 2)
        assert server.endings == [
            (f.Result(job=2, machine="m", seconds=1.5), b"two"),
            (f.Result(job=1, machine="m", seconds=1.5), b""),
        ]


@on_a_loop
async def test_an_error_on_the_machine_loses_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as server:
        (await a_job(server)).set_result(answer(error="WorkerDiedError: died", payload=b"not a result"))
        await until(lambda: server.endings)
        assert server.endings == [(f.Lost(job=1, reason="WorkerDiedError: died", machine="m"), b"")]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(EngineError("no machine is left"), "no machine is left"), (ZeroDivisionError("odd"), "ZeroDivisionError: odd")],
)
@on_a_loop
async def test_an_error_of_the_engine_loses_that_job_only(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(monkeypatch) as server:
        first = await a_job(server)
        second = await a_job(server, 2)
        first.set_exception(error)
        await until(lambda: server.endings)
        assert server.endings == [(f.Lost(job=1, reason=reason), b"")]
        second.set_result(answer(payload=b"two"))
        await until(lambda: len(server.endings) == 2)
        assert server.endings[1][1] == b"two"
        assert server.kinds.count("Gone") == 0


@pytest.mark.parametrize("packed", [b"", b"\xc1", msgspec.msgpack.encode({"machine": 1})])
@on_a_loop
async def test_an_answer_that_cannot_be_read_loses_the_job(packed: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as server:
        (await a_job(server)).set_result(packed)
        await until(lambda: server.endings)
        ((lost, _),) = server.endings
        assert isinstance(lost, f.Lost) and lost.job == 1


@on_a_loop
async def test_a_withdrawn_job_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as server:
        await a_job(server)
        other = await a_job(server, 2)
        server.withdraw(1)
        server.withdraw(3)
        await until(lambda: server.plan.cancelled)
        other.set_result(answer(payload=b"two"))
        await until(lambda: any(payload == b"two" for _, payload in server.endings))
        server.withdraw(2)
        server.run(4)
        await until(lambda: "key 4" in server.plan.answers)
        assert server.plan.cancelled == ["key 1"]
        assert not [message for message, _ in server.endings if isinstance(message, f.Result) and message.job == 1]


# ---------------------------------------------------------------- farms that do not answer


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (EngineError("no scheduler answers"), "no scheduler answers"),
        (ConfigurationError("not a farm", remedy="name one"), "not a farm"),
        (ZeroDivisionError("odd"), "ZeroDivisionError: odd"),
    ],
)
@on_a_loop
async def test_a_farm_that_cannot_be_reached_is_tried_again(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan()
    plan.refusal = error
    async with running(monkeypatch, plan) as server:
        await until(lambda: plan.connections >= 2)
        assert server.kinds == ["Gone"]
        first, _ = server.received[0]
        assert isinstance(first, f.Gone) and reason in first.reason
        await until(lambda: [message for message, _ in server.received if message == f.Gone(reason=AGAIN)])
        server.run(1)
        await until(lambda: server.endings)
        assert server.endings == [(f.Lost(job=1, reason="the farm does not answer"), b"")]
        plan.refusal = None
        await until(lambda: server.kinds[-1] == "Machines")


@pytest.mark.parametrize("error", [EngineError("no answer"), ZeroDivisionError("odd")])
@on_a_loop
async def test_a_farm_that_goes_away_takes_its_jobs_along(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch) as server:
        plan = server.plan
        await a_job(server)
        await a_job(server, 2)
        plan.may_close.clear()
        plan.silence = error
        await until(lambda: "Gone" in server.kinds and sorted(plan.cancelled) == ["key 1", "key 2"])
        messages = [message for message, _ in server.received if not isinstance(message, f.Machines)]
        assert isinstance(messages[0], f.Gone) and str(error) in messages[0].reason, "not the jobs first"
        assert plan.engines[0].closed, "it is said before the engine has disconnected"
        server.run(3)
        await until(lambda: any(message.job == 3 for message, _ in server.endings if isinstance(message, f.Lost)))
        assert plan.connections == 1
        plan.silence = None
        plan.may_close.set()
        await until(lambda: server.kinds[-1] == "Machines")
        assert plan.connections == 2
        server.run(4)
        await until(lambda: "key 4" in plan.answers)
        plan.answers["key 4"].set_result(answer(payload=b"four"))
        await until(lambda: server.endings[-1][1] == b"four")


@on_a_loop
async def test_an_address_that_is_no_farm_s_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    server = Server(ours, Plan())
    served = asyncio.ensure_future(Bridge(theirs, "http://127.0.0.1").run())
    await until(lambda: server.received)
    server.close()
    await asyncio.wait_for(served, LIMIT)
    ((gone, _), *_) = server.received
    assert isinstance(gone, f.Gone) and "http://127.0.0.1" in gone.reason


@on_a_loop
async def test_the_bridge_ends_with_its_server_and_withdraws_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan()
    async with running(monkeypatch, plan) as server:
        await a_job(server)
    assert plan.cancelled == ["key 1"]


@on_a_loop
async def test_the_bridge_ends_with_a_server_that_sends_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "engine_of", Plan().engine)
    ours, theirs = socket.socketpair()
    with ours:
        served = asyncio.ensure_future(Bridge(theirs, "played://").run())
        ours.sendall(b"x" * 100)
        await asyncio.wait_for(served, LIMIT)


# ---------------------------------------------------------------- the process


def test_the_process_reports_and_ends_with_its_socket() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(LIMIT)
        process = subprocess.Popen(
            [sys.executable, "-m", "fxpool.farm.bridge", "--farm", "nowhere", "--socket", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
        )
        try:
            theirs.close()
            channel = Channel[f.FromBridge](ours, f.FromBridge)
            while (frame := channel.receive()) is not None and isinstance(frame[0], f.Connecting):
                pass
            assert frame is not None and isinstance(frame[0], f.Gone) and "'nowhere'" in frame[0].reason
            with open(f"/proc/{process.pid}/comm") as file:
                assert file.read() == "fxpool bridge\n"
            ours.close()
            assert process.wait(LIMIT) == 0
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("address", ["", "dask", "dask:/h", "tcp://h:1", "DASK://h:1"])
def test_addresses_of_no_engine(address: str) -> None:
    for choose in (engine_of, functools.partial(worker_of, slots=1)):
        with pytest.raises(ConfigurationError, match="not the address of a farm"):
            choose(address)


def test_a_bridge_does_not_import_torch() -> None:
    """It would take seconds and 0.3 GB, on each host."""
    pytest.importorskip("distributed")
    code = "import sys, fxpool.farm.dask_engine; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_choosing_an_engine_does_not_import_it() -> None:
    code = "import sys, fxpool.farm.bridge; print({'dask', 'distributed', 'ray', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
