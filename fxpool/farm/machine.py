"""This machine as a part of a farm: runs its jobs in fxpool's own server here, with its limits and retries.

A job's worker may crash, hang or run out of memory: its server ends it, and the engine's process goes on. An answer
without a result says why; the asking host then compiles the graph itself.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from fxpool import config, notices
from fxpool.codecache.key import build_digests
from fxpool.errors import ConfigurationError, FxpoolError, ServerLostError
from fxpool.farm import engine
from fxpool.farm.engine import Answer
from fxpool.lowering.core import pool_environment
from fxpool.lowering.core.farm_orders import PREPARE_FOR_OTHERS_JOB, FarmOrder
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.cpp import host_facts
from fxpool.lowering.request import environment_variables
from fxpool.pool import JobSpec
from fxpool.pool.wire.farm import Machine, Order

if TYPE_CHECKING:
    from fxpool.pool import Job

__all__ = ["LocalMachine", "of_this_process", "run"]

log = notices.logger(__name__)

# Seconds for which a job may wait for the machine's server to start, and to be compiled if its host sets no limit.
_TIMEOUT = 3600.0
# The number of this machine's servers that a job may lose.
_SERVERS = 3
# Seconds between two looks at this machine's builds.
_BUILDS_SECONDS = 10.0


class LocalMachine:
    """This machine, with so many slots. Thread-safe."""

    def __init__(self, slots: int) -> None:
        """Start this machine's server. Raises ConfigurationError without a key, StoreError without a cache."""
        key_file = engine.key_file()
        engine.check_cache()
        store = runtime.store()
        if store is None:
            raise ConfigurationError(
                f"a farm's machine needs a cache, and {config.current().cache_dir} cannot be used",
                remedy="see the warning for the reason, and run `fxpool doctor`",
            )
        self.slots = slots
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._key_file = os.path.abspath(key_file)
        self._store = store.root
        self._tools = runtime.toolchain_directory(store)
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._builds: dict[str, str] = {}
        self._looked = time.monotonic()
        self._look()
        runtime.pool().start(wait=True)

    def announced(self, address: str = "") -> Machine:
        """Return this machine as its farm lists it."""
        builds = self.builds()
        with self._lock:
            running = list(self._jobs)
        return Machine(
            name=self.name, address=address, slots=self.slots, jobs=len(running), running=running, builds=builds
        )

    def builds(self) -> dict[str, str]:
        """Return the digests of what this machine compiles with, as of some seconds ago.

        Its compilers may change while it runs. A thread looks for that, because heartbeats must not wait for it.
        """
        now = time.monotonic()
        with self._lock:
            due = now - self._looked >= _BUILDS_SECONDS
            if due:
                self._looked = now
        if due:
            threading.Thread(target=self._look, name="fxpool-builds", daemon=True).start()
        return self._builds

    def _look(self) -> None:
        self._builds = build_digests.digests(self._tools)

    def run(self, packed: bytes) -> bytes:
        """Run a job and wait for it; return the packed `Answer`. Never raises."""
        start = time.monotonic()
        answer = Answer(machine=self.name)
        try:
            order = msgspec.msgpack.decode(packed, type=Order)
            answer.payload = self._run(order)
        except Exception as error:  # a worker's exception may be of any class
            answer.error = _described(error)
            log.warning("no result for a job of the farm: %s", answer.error)
        answer.seconds = time.monotonic() - start
        return msgspec.msgpack.encode(answer)

    def _run(self, order: Order) -> bytes:
        payload = FarmOrder(
            key=order.key,
            seal=order.seal,
            request=order.payload,
            builds=order.builds,
            store=self._store,
            toolchain_dir=self._tools,
            key_file=self._key_file,
        )
        packed = msgspec.msgpack.encode(payload)
        spec = JobSpec(
            label=order.label,
            environment={**_own_environment(), **order.environment},
            dedup_key=f"farm {order.key}",
            **{**config.current().job_limits, "timeout": order.timeout or _TIMEOUT},
        )
        for _ in range(_SERVERS - 1):
            try:
                return self._result(order, packed, spec)
            except ServerLostError as error:
                log.warning("running %r again: %s", order.label, error)
        return self._result(order, packed, spec)

    def _result(self, order: Order, packed: bytes, spec: JobSpec) -> bytes:
        job = runtime.pool().submit(order.function, packed, spec)
        self._prepare(packed, spec)
        with self._lock:
            self._jobs[order.key] = job
        try:
            return job.result()
        finally:
            with self._lock:
                if self._jobs.get(order.key) is job:
                    del self._jobs[order.key]

    def _prepare(self, packed: bytes, spec: JobSpec) -> None:
        """Have a worker probe this machine's compiler and precompile the header, unless that is done."""
        tools = self._tools
        if tools is None or host_facts.are_kept(tools) or not host_facts.worth_preparing():
            return
        if runtime.may_ask_to_prepare(tools):
            label, key = "this machine's toolchain", "host of the farm"
            preparing = msgspec.structs.replace(
                spec, label=label, timeout=None, retries=0, dedup_key=key, best_effort=True
            )
            runtime.pool().submit(PREPARE_FOR_OTHERS_JOB, packed, preparing)

    def cancel(self, key: str) -> None:
        """End a job that no host waits for any more. No-op if it has ended."""
        with self._lock:
            job = self._jobs.get(key)
        if job is not None:
            job.cancel()

    def close(self) -> None:
        """Withdraw all jobs."""
        with self._lock:
            jobs: Sequence[Job] = list(self._jobs.values())
        for job in jobs:
            job.cancel()
        runtime.close()


def _own_environment() -> dict[str, str | None]:
    """Return this machine's variables for a job: those that no key has, such as paths of compilers."""
    return {
        **pool_environment.job_environment(environment_variables.of_machine()),
        **dict.fromkeys(pool_environment.DEVICES, ""),
    }


def _described(error: BaseException) -> str:
    message = error.message if isinstance(error, FxpoolError) else str(error)
    return f"{type(error).__name__}: {message}"[:500]


# ---------------------------------------------------------------- the engine's process

_machine: LocalMachine | None = None


@contextlib.contextmanager
def of_this_process(machine: LocalMachine) -> Iterator[LocalMachine]:
    """Make `run` run jobs on `machine`."""
    global _machine
    _machine = machine
    try:
        yield machine
    finally:
        _machine = None
        machine.close()


def run(packed: bytes) -> bytes:
    """Run a job on this process's machine, as `LocalMachine.run`. It is the function of the engine's tasks."""
    if _machine is None:
        return msgspec.msgpack.encode(Answer(machine=socket.gethostname(), error="this process is no farm's machine"))
    return _machine.run(packed)
