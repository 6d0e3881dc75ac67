"""The actors of a farm behind Ray: the registry, and a machine.

    bridge of a host ──ask──▶ registry (one per cluster, detached) ──run──▶ machine (ends with its `fxpool farm worker`)
                                  ▲──────────── announce, each `PERIOD` ─────────┘

Ray gets the code of this module and of `ray_farm` by value: the cluster's nodes need Ray, and only machines need
fxpool, which they import once they have the environment of their `fxpool farm worker`. Hence imports in functions.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fxpool.farm import ray_farm
from fxpool.farm.engine import PERIOD, SILENCE
from fxpool.farm.ray_farm import Farm, LostError

__all__ = ["FACTORY", "NAMESPACE", "REGISTRY", "MachineActor", "RegistryActor", "by_value", "registry"]

NAMESPACE = "fxpool"
#: The name of the registry. The number is raised with its methods: a detached actor outlives an upgrade of fxpool.
REGISTRY = "fxpool-farm-1"
#: The callable that a machine calls with its slots, and that returns the methods of `fxpool.farm.machine.LocalMachine`.
FACTORY = "fxpool.farm.machine:LocalMachine"

# Calls of actors at a time: each ask is a call until its job has ended.
_CALLS = 100_000


def by_value(ray: Any) -> None:
    """Have Ray pickle the code of these modules, for nodes that cannot import them."""
    for module in (sys.modules[__name__], ray_farm):
        ray.cloudpickle.register_pickle_by_value(module)


def registry(ray: Any) -> Any:
    """Return the handle of the cluster's registry; starts it if need be."""
    options = {
        "name": REGISTRY,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,  # asks are repeated after a restart
        "max_concurrency": _CALLS,
    }
    while True:
        with contextlib.suppress(ValueError):  # it does not exist
            return ray.get_actor(REGISTRY, namespace=NAMESPACE)
        # Two that start it at the same time may both fail to find it, even with Ray's `get_if_exists`.
        with contextlib.suppress(ValueError):  # it exists
            actor = ray.remote(RegistryActor).options(**options).remote()
            ray.get(actor.ready.remote())
            return actor
        time.sleep(0.1)


class RegistryActor:
    """The registry of a cluster: `Farm` as an asynchronous actor. Its methods are those of `Farm`."""

    def __init__(self) -> None:
        self._farm = Farm()
        self._ticking: asyncio.Task[None] | None = None

    def _of_loop(self) -> Farm:
        if self._ticking is None:  # the constructor does not run in the loop
            self._ticking = asyncio.get_running_loop().create_task(self._tick())
        return self._farm

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            self._farm.tick()

    async def ready(self) -> None:
        """Return once the actor runs."""

    async def announce(self, address: str, described: bytes, slots: int, machine: Any) -> None:
        """Register a machine, or note that it is alive; `machine` is its handle."""
        self._of_loop().announce(address, described, slots, _ActorLink(machine))

    async def leave(self, address: str) -> None:
        """Remove a machine."""
        self._of_loop().leave(address)

    async def machines(self, bridge: str) -> list[tuple[bytes, int]]:
        """Return the machines, as `Farm.machines`."""
        return self._of_loop().machines(bridge)

    async def ask(
        self, bridge: str, ask: str, key: str, order: bytes, allowed: Sequence[str], priority: int
    ) -> tuple[bool, bytes | str]:
        """Have a job run, as `Farm.ask`."""
        return await self._of_loop().ask(bridge, ask, key, order, allowed, priority)

    async def withdraw(self, ask: str) -> None:
        """Withdraw an ask."""
        self._of_loop().withdraw(ask)

    async def forget(self, bridge: str) -> None:
        """Withdraw a bridge's asks."""
        self._of_loop().forget(bridge)


class _ActorLink:
    """The registry's way to the actor of a machine."""

    def __init__(self, machine: Any) -> None:
        self._machine = machine

    async def run(self, order: bytes) -> bytes:
        from ray.exceptions import RayError, RayTaskError  # in Ray's processes only

        try:
            answer: bytes = await self._machine.run.remote(order)
        except RayTaskError:  # of the method; the machine lives on
            raise
        except RayError as error:
            raise LostError(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}") from error
        return answer

    def cancel(self, key: str) -> None:
        try:
            self._machine.cancel.remote(key)
        except Exception:  # the machine is gone
            pass


class MachineActor:
    """A machine of the farm, as an actor with threads: its `LocalMachine`, and more for its worker."""

    def __init__(self) -> None:
        self._closed = threading.Event()
        self._host: Any = None
        self._address = ""
        self._described = b""

    def start(self, address: str, slots: int, factory: str, environment: Mapping[str, str]) -> str:
        """Start the machine's server, and announce the machine from then on. Returns the reason if that fails.

        The environment is an argument, because a runtime environment would show its secrets on Ray's dashboard. It
        replaces the actor's own: Ray hides GPUs and limits threads there.
        """
        try:
            _become(environment)
            module, _, name = factory.partition(":")
            self._host = getattr(importlib.import_module(module), name)(slots)
            self._address = address
            self._describe()
        except Exception as error:  # of any class
            return f"{type(error).__name__}: {error}"
        threading.Thread(target=self._keep_described, daemon=True).start()
        threading.Thread(target=self._keep_announced, args=(slots,), daemon=True).start()
        return ""

    def _describe(self) -> None:
        import msgspec  # of a machine only

        self._described = msgspec.msgpack.encode(self._host.announced(self._address))

    def _keep_described(self) -> None:
        """Describe the machine. It looks for changes of its compilers, which may take longer than `SILENCE`."""
        while not self._closed.wait(PERIOD):
            try:
                self._describe()
            except Exception as error:  # of any class: the machine still has its last description
                print(f"the machine {self._address} cannot be described: {error}", file=sys.stderr)

    def _keep_announced(self, slots: int) -> None:
        import ray  # in Ray's processes only

        this = ray.get_runtime_context().current_actor
        to: Any = None
        while not self._closed.is_set():
            start = time.monotonic()
            try:
                to = to or registry(ray)
                ray.get(to.announce.remote(self._address, self._described, slots, this), timeout=SILENCE)
            except Exception:  # of any class: it restarts, or has been killed for good
                to = None
            self._closed.wait(max(0.0, PERIOD - (time.monotonic() - start)))

    def run(self, order: bytes) -> bytes:
        """Run a job and return its packed `Answer`."""
        answer: bytes = self._host.run(order)
        return answer

    def cancel(self, key: str) -> None:
        """End a job."""
        self._host.cancel(key)

    def pid(self) -> int:
        """Return the process's number; it shows that the machine is alive."""
        return os.getpid()

    def close(self) -> None:
        """Leave the farm and end the machine's server."""
        import ray  # as above

        self._closed.set()
        try:
            ray.get(registry(ray).leave.remote(self._address), timeout=SILENCE)
        except Exception:  # of any class: the registry misses its announcements
            pass
        if self._host is not None:
            self._host.close()


def _become(environment: Mapping[str, str]) -> None:
    """Give this process an environment, but for Ray's own variables, and import from its PYTHONPATH."""
    own = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    others = {name: value for name, value in environment.items() if not name.startswith("RAY_")}
    os.environ.clear()
    os.environ.update(others | own)
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    sys.path[:0] = paths
