"""Ray as the engine of a farm, through the Ray Client of the cluster's head: ``ray://head:10001``.

`RayEngine` asks the registry (`ray_actors`) to run jobs. `RayWorker` has the Ray node of this machine run an actor that
is a machine of the farm. `ray.init` takes 3 s and more, calls of the client block while a connection hangs, and
threads of an executor would hold up the end of the process: calls run in daemon threads with time limits.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib.util
import logging
import os
import random
import secrets
import signal
import socket
import threading
import time
import urllib.parse
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import psutil

from fxpool import notices
from fxpool.errors import MissingExtraError
from fxpool.farm import ray_actors
from fxpool.farm.engine import PERIOD, SILENCE, EngineError, UnreachableError
from fxpool.pool.wire.farm import Machine, machine_of

__all__ = ["RayEngine", "RayWorker"]

log = notices.logger(__name__)
_T = TypeVar("_T")

# Seconds that connecting may take once the head's port accepts connections: it starts a process there for each client.
# If several clients connect within 0.1 s, such a process may die at its start (Ray 2.60), which `ray.init` reports
# after half a minute; so it is called again, and `engine.CONNECT` is not enough.
_CONNECT, _TRIES = 120.0, 3
# Bytes per second that a connection is expected to carry: a list of machines waits behind orders that are being sent.
_BANDWIDTH = 10e6
# Seconds for which a machine may start and end its server.
_START, _END = 600.0, 30.0
# The most seconds between two attempts of a worker to join the farm again.
_PAUSE = 10.0
# The client of a process has one connection, and a thread that hangs in `ray.init` may not get the next caller's.
_connecting = threading.Lock()


class RayEngine:
    """A connection to the registry of a Ray cluster."""

    def __init__(self, address: str) -> None:
        """Remember the address. Raises MissingExtraError if Ray or its client is not installed."""
        _require_ray()
        self._address = address
        self._bridge = secrets.token_hex(8)
        self._asks = 0
        self._sending = 0
        self._registry: Any = None
        self._pending: set[asyncio.Future[tuple[bool, Any]]] = set()

    async def connect(self) -> None:
        """Connect to the head, whose port has to answer within `SILENCE` seconds. `ray.init` takes longer."""
        self._registry = await self._within(_CONNECT, lambda: ray_actors.registry(_connected(self._address)))

    async def machines(self) -> list[Machine]:
        """Return the machines that have announced themselves. Jobs that run are lost if it raises EngineError."""
        ray, registry = _ray(), self._registry_now()
        limit = SILENCE + self._sending / _BANDWIDTH
        try:
            listed = await self._within(limit, lambda: ray.get(registry.machines.remote(self._bridge), timeout=limit))
        except EngineError as error:
            self._registry = None
            for future in self._pending:
                if not future.done():
                    future.set_exception(EngineError(str(error)))
            raise
        return [_machine(described, jobs) for described, jobs in listed]

    async def run(self, key: str, order: bytes, machines: Sequence[str], priority: int) -> bytes:
        """Run a job on one of the machines, or wait for the run that another host has asked for."""
        registry = self._registry_now()
        self._asks += 1
        ask = f"{self._bridge}-{self._asks}"
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[bool, Any]] = loop.create_future()

        def settle(called: concurrent.futures.Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_copy, called, future)

        def send() -> None:
            # The call's future is not awaited itself: the client cannot take it if a future has been cancelled.
            registry.ask.remote(self._bridge, ask, key, order, list(machines), priority).future().add_done_callback(
                settle
            )

        self._pending.add(future)
        self._sending += len(order)
        sending = _thread(send)
        sending.add_done_callback(lambda sent: settle(sent) if sent.exception() else None)
        sending.add_done_callback(lambda sent: self._sent(loop, len(order)))
        try:
            succeeded, result = await future
        except asyncio.CancelledError:
            _thread(lambda: registry.withdraw.remote(ask))
            raise
        except EngineError:
            raise
        except Exception as error:  # of Ray, of many classes
            raise EngineError(f"the farm {self._address} lost the job: {_shown(error)}") from error
        finally:
            self._pending.discard(future)
        if not succeeded:
            raise EngineError(str(result))
        return bytes(result)

    def _sent(self, loop: asyncio.AbstractEventLoop, size: int) -> None:
        def subtract() -> None:
            self._sending -= size

        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(subtract)

    async def close(self) -> None:
        """Withdraw all jobs and disconnect."""
        registry, self._registry = self._registry, None

        def disconnect() -> None:
            if registry is not None:
                with contextlib.suppress(Exception):
                    _ray().get(registry.forget.remote(self._bridge), timeout=PERIOD)
            _disconnect()

        with contextlib.suppress(EngineError):
            await self._within(SILENCE, disconnect)

    def _registry_now(self) -> Any:
        if self._registry is None:
            raise EngineError(f"not connected to the farm {self._address}")
        return self._registry

    async def _within(self, seconds: float, function: Callable[[], _T]) -> _T:
        """Call a function in a thread. Raises EngineError if it raises, or takes longer."""
        with _unreachable(self._address):
            return await asyncio.wait_for(asyncio.wrap_future(_thread(function)), seconds)


class RayWorker:
    """This machine as a part of a Ray cluster's farm."""

    def __init__(self, address: str, slots: int, factory: str = ray_actors.FACTORY) -> None:
        """Remember the arguments. Raises MissingExtraError if Ray or its client is not installed."""
        _require_ray()
        self._address, self._slots, self._factory = address, slots, factory
        self._stop = threading.Event()
        self._machine: Any = None

    def serve(self) -> None:
        """Have this machine's Ray node run a machine of the farm, which starts again if its process is killed."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())
        pause = PERIOD
        try:
            self._join()
            while not self._stop.wait(PERIOD):
                try:
                    self._within(2 * SILENCE, self._check)
                    pause = PERIOD
                except EngineError as error:
                    if pause == PERIOD:
                        log.warning("the farm lost this machine, which joins it again: %s", error)
                    self._stop.wait(pause)
                    pause = min(2 * pause, _PAUSE)
                    with contextlib.suppress(EngineError):  # the next check fails, and it is tried again
                        self._within(_CONNECT + _START, self._begin)
        finally:
            self._stop.clear()  # from here on, wait for the machine to end
            with contextlib.suppress(EngineError):
                self._within(_END, self._end)

    def _join(self) -> None:
        """Begin, as soon as the head answers."""
        pause = PERIOD
        while not self._stop.is_set():
            try:
                self._within(_CONNECT + _START, self._begin)
                return
            except UnreachableError as error:
                if pause == PERIOD:
                    log.warning("waiting for the farm: %s", error)
                self._stop.wait(pause)
                pause = min(2 * pause, _PAUSE)

    def _begin(self) -> None:
        self._machine = None
        ray = _connected(self._address)
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # needs Ray, which is optional

        address = f"fxpool-{socket.gethostname()}-{secrets.token_hex(4)}"
        options = {
            "name": address,
            "namespace": ray_actors.NAMESPACE,
            "num_cpus": 0,
            "max_concurrency": self._slots + 8,  # withdrawals, and the worker's own calls
            "scheduling_strategy": NodeAffinitySchedulingStrategy(self._node(ray), soft=False),
        }
        machine = ray.remote(ray_actors.MachineActor).options(**options).remote()
        reason = ray.get(machine.start.remote(address, self._slots, self._factory, dict(os.environ)))
        if reason:
            ray.kill(machine)
            raise EngineError(f"this machine cannot be a part of the farm {self._address}: {reason}")
        self._machine = machine
        log.info("compiling for %s with %d slots, as %s", self._address, self._slots, address)

    def _node(self, ray: Any) -> str:
        """Return the id of this machine's Ray node. Raises EngineError if none is alive."""
        own = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
        alive = [node for node in ray.nodes() if node["Alive"]]
        # By name as well, for nodes behind another address; last, because names need not be unique.
        for node in sorted(alive, key=lambda node: node["NodeManagerAddress"] not in own):
            if node["NodeManagerAddress"] in own or node["NodeManagerHostname"] == socket.gethostname():
                return str(node["NodeID"])
        head = _host_and_port(self._address)[0]
        raise EngineError(
            f"this machine is not a node of the Ray cluster at {head}; start one here, and then the worker: "
            f"ray start --address={head}:6379"
        )

    def _check(self) -> None:
        """Raise an exception if the machine's process has ended, or the connection is lost."""
        ray = _ray()
        if self._machine is None:
            raise EngineError(f"not connected to the farm {self._address}")
        with contextlib.suppress(ray.exceptions.GetTimeoutError):  # it is busy
            ray.get(self._machine.pid.remote(), timeout=SILENCE)

    def _end(self) -> None:
        if self._machine is not None:
            ray = _ray()
            with contextlib.suppress(Exception):  # it has ended
                ray.get(self._machine.close.remote(), timeout=_END - PERIOD)
                ray.kill(self._machine)
        _disconnect()

    def _within(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function in a thread. Raises EngineError if it raises or takes longer; returns early at a signal."""
        called = _thread(function)
        end = time.monotonic() + seconds
        with _unreachable(self._address):
            while not called.done() and not self._stop.wait(0.01):
                if time.monotonic() > end:
                    raise TimeoutError
            if called.done():
                called.result()


# ---------------------------------------------------------------- Ray's client, of which a process has one


def _require_ray() -> None:
    if not all(importlib.util.find_spec(name) for name in ("ray", "grpc")):
        raise MissingExtraError("farms on Ray", "ray[client]", "ray")


def _ray() -> Any:
    """Import Ray; takes 0.5 s."""
    # Without it a lost connection is tried again for half a minute, in which calls hang and jobs are not lost.
    os.environ.setdefault("RAY_CLIENT_RECONNECT_GRACE_PERIOD", "0")
    # A call without a connection would start a cluster on this machine.
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    # Under `uv run` Ray would copy the working directory to the cluster.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    import ray  # optional, and the variables are read at its import

    return ray


def _connected(address: str) -> Any:
    """Connect this process's client, and return Ray."""
    host, port = _host_and_port(address)
    # By itself Ray would try for half a minute.
    socket.create_connection((host, port), SILENCE).close()
    with _connecting:
        ray = _ray()
        _disconnect()
        # Answers may be large: that is the point.
        warnings.filterwarnings("ignore", "More than 10MB of messages|Ray Client connection timed out")
        url = f"ray://[{host}]:{port}" if ":" in host else f"ray://{host}:{port}"
        for left in reversed(range(_TRIES)):
            try:
                ray.init(url, namespace=ray_actors.NAMESPACE, log_to_driver=False, logging_level=logging.CRITICAL)
                break
            except ConnectionAbortedError:
                if not left:
                    raise
                time.sleep(random.uniform(0, PERIOD))
        ray_actors.by_value(ray)
        return ray


def _disconnect() -> None:
    with contextlib.suppress(Exception):  # of a connection that is lost
        _ray().shutdown()


def _host_and_port(address: str) -> tuple[str, int]:
    parts = urllib.parse.urlsplit(address)
    return parts.hostname or "127.0.0.1", parts.port or 10001


def _machine(described: bytes, jobs: int) -> Machine:
    announced = None
    with contextlib.suppress(msgspec.DecodeError):  # of another version of fxpool, as other fields are
        announced = msgspec.msgpack.decode(described)
    return machine_of(announced, jobs=jobs)


@contextlib.contextmanager
def _unreachable(address: str) -> Iterator[None]:
    """Raise UnreachableError for exceptions other than EngineError: those of Ray, of many classes."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        raise UnreachableError(f"the farm {address} does not answer: {_shown(error)}") from error


def _shown(error: BaseException) -> str:
    line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _thread(function: Callable[[], _T]) -> concurrent.futures.Future[_T]:
    """Call a function in a daemon thread."""
    called: concurrent.futures.Future[_T] = concurrent.futures.Future()
    called.set_running_or_notify_cancel()  # so that a caller that stops waiting cannot cancel it

    def call() -> None:
        try:
            called.set_result(function())
        except BaseException as error:  # it is the caller's
            called.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return called


def _copy(called: concurrent.futures.Future[Any], future: asyncio.Future[Any]) -> None:
    if future.done():
        return
    if (error := called.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(called.result())
