"""A farm on Dask (dask.distributed): a job is a task whose key is the job's, so that equal jobs of all hosts are one.

A machine of the farm is a Dask worker with `FarmPlugin`: ``fxpool farm worker`` runs one, and
``client.register_plugin(FarmPlugin())`` makes machines of workers that run already. A machine announces itself in the
metrics of its heartbeats. TLS and certificates are Dask's own settings (``distributed.comm.tls``).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fxpool import notices, temporary
from fxpool.errors import MissingExtraError
from fxpool.farm.engine import CONNECT, SILENCE, EngineError
from fxpool.pool.wire.farm import Machine, machine_of

try:
    import dask
    from distributed import Client, Security, Worker, WorkerPlugin
    from distributed.comm.core import connect
except ImportError as missing:
    raise MissingExtraError("farms on Dask", "distributed", "dask") from missing

if TYPE_CHECKING:
    from fxpool.farm.machine import LocalMachine

__all__ = ["DaskEngine", "DaskWorker", "FarmPlugin"]

log = notices.logger(__name__)

# The key of a machine's announcement in the metrics of its heartbeats.
_METRIC = "fxpool"
# Dask's own limits: it notices a broken connection after the second, which may not be shorter.
_SETTINGS = {"distributed.comm.timeouts.connect": f"{CONNECT}s", "distributed.comm.timeouts.tcp": "11s"}
# Seconds between two tries of a machine to reach its scheduler.
_AGAIN = 2.0


def _address(farm: str) -> str:
    """Return Dask's address of a scheduler."""
    scheme, _, rest = farm.partition("://")
    return f"{'tls' if scheme == 'dask+tls' else 'tcp'}://{rest}"


class DaskEngine:
    """A host's connection to a scheduler; see `engine.Engine`."""

    def __init__(self, address: str) -> None:
        self._address = _address(address)
        self._client: Any = None  # a Client, whose methods have no types
        self._jobs: dict[asyncio.Task[bytes], frozenset[str]] = {}
        # By machine: the last heartbeat, by the scheduler's clock, and when it was first seen, by this one.
        self._beats: dict[str, tuple[float, float]] = {}
        self._silent: set[str] = set()

    async def connect(self) -> None:
        dask.config.set(_SETTINGS)
        try:
            client: Any = Client
            self._client = await client(
                self._address, asynchronous=True, set_as_default=False, timeout=CONNECT, name="fxpool"
            )
        except Exception as error:  # OSError, TimeoutError, and what TLS raises
            raise EngineError(f"no Dask scheduler answers at {self._address}: {error}") from error

    async def machines(self) -> list[Machine]:
        workers: dict[str, Any] = (await self._ask("identity", n_workers=-1))["workers"]
        self._beats = {address: beat for address, beat in self._beats.items() if address in workers}
        machines = []
        for address, worker in workers.items():
            announced = worker.get("metrics", {}).get(_METRIC)
            if announced is None or self._is_silent(address, worker["last_seen"]):
                continue
            one = machine_of(announced, address=address)
            one.jobs = max(one.jobs, _tasks(worker["metrics"]))
            machines.append(one)
        alive = {one.address for one in machines}
        silent = set(self._beats) - alive
        held = await self._ask("processing", workers=sorted(silent)) if silent - self._silent and self._jobs else {}
        self._silent = silent
        keys = {key for keys in held.values() for key in keys}
        for job, allowed in list(self._jobs.items()):
            if not alive & allowed or job.get_name() in keys:
                job.cancel()
        return machines

    def _is_silent(self, address: str, beat: float) -> bool:
        now = time.monotonic()
        if self._beats.get(address, (0.0, 0.0))[0] != beat:
            self._beats[address] = (beat, now)
        return now - self._beats[address][1] > SILENCE

    async def _ask(self, question: str, **arguments: Any) -> Any:
        try:
            return await asyncio.wait_for(getattr(self._client.scheduler, question)(**arguments), SILENCE)
        except Exception as error:  # OSError, TimeoutError, and Dask's own
            raise EngineError(f"the Dask scheduler at {self._address} does not answer: {error!r}") from error

    async def run(self, key: str, order: bytes, machines: Sequence[str], priority: int) -> bytes:
        name = f"fxpool-{key}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a large request is sent with its task
            future = self._client.submit(_run, order, key=name, workers=list(machines), priority=priority)
        task = asyncio.ensure_future(self._result(future))
        task.set_name(name)
        self._jobs[task] = frozenset(machines)
        try:
            await asyncio.wait({task})
            if task.cancelled():
                raise EngineError("the machine of the job is gone, or the scheduler has dropped the job")
            if (error := task.exception()) is not None:
                raise EngineError(f"Dask could not run the job: {error!r}") from error
            return task.result()
        finally:
            del self._jobs[task]
            task.cancel()
            future.release()

    async def _result(self, future: Any) -> bytes:
        result: bytes = await future
        return result

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(client.close(), SILENCE)


def _run(order: bytes) -> bytes:
    """Run a job on the machine that the task is on."""
    from fxpool.farm import machine  # imports torch: on a machine of the farm only, not in bridges

    return machine.run(order)


def _tasks(metrics: dict[str, Any]) -> int:
    """Return the number of tasks that a worker runs, or that wait for one of its threads."""
    counts = metrics.get("task_counts", {})
    return sum(counts.get(state, 0) for state in ("executing", "ready"))


class FarmPlugin(WorkerPlugin):
    """Makes a machine of a farm out of a Dask worker. Its slots are the worker's threads."""

    name = "fxpool"

    def __init__(self, machine: LocalMachine | None = None) -> None:
        """With a machine, that is the worker's; the plugin ends it. Otherwise a worker makes its own."""
        self._machine = machine
        self._entered = contextlib.ExitStack()

    def setup(self, worker: Worker) -> None:
        """Start fxpool's server on this machine. Raises ConfigurationError and StoreError: this machine can't serve."""
        from fxpool.farm import machine  # as above

        local = self._machine or machine.LocalMachine(worker.state.nthreads)
        self._machine = self._entered.enter_context(machine.of_this_process(local))
        worker.metrics[_METRIC] = lambda worker: msgspec.to_builtins(local.announced())

    def teardown(self, worker: Worker) -> None:
        """End the machine's jobs and its connection to the server."""
        worker.metrics.pop(_METRIC, None)
        self._entered.close()

    def transition(self, key: Any, start: str, finish: str, **more: Any) -> None:
        """End a job that no host waits for any more."""
        cancelled = start == "executing" and finish == "cancelled" and str(key).startswith("fxpool-")
        if cancelled and self._machine is not None:
            self._machine.cancel(str(key).removeprefix("fxpool-"))


class DaskWorker:
    """This machine as a Dask worker; see `engine.Worker`."""

    def __init__(self, address: str, slots: int) -> None:
        self._address, self._slots = _address(address), slots

    def serve(self) -> None:
        dask.config.set(_SETTINGS)
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        with temporary.directory("dask") as scratch:  # the next one removes it if this process is killed
            waiting = False
            while not stop.is_set():
                serving = asyncio.ensure_future(self._one_connection(scratch))
                await asyncio.wait({serving, asyncio.ensure_future(stop.wait())}, return_when="FIRST_COMPLETED")
                if not serving.done():
                    serving.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    try:
                        await serving
                        waiting = False
                    except OSError as error:  # TimeoutError, too
                        if not waiting:
                            log.warning("no Dask scheduler answers at %s, waiting for one: %s", self._address, error)
                        waiting = True
                if not stop.is_set():
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(stop.wait(), _AGAIN)

    async def _one_connection(self, scratch: str) -> None:
        """Serve until the scheduler is gone. Raises OSError: none answers; FxpoolError: this machine cannot serve."""
        from fxpool.farm import machine  # as above

        await self._reach()
        # Before Dask's worker, which would log a traceback of an error in its plugin.
        local = machine.LocalMachine(self._slots)
        try:
            await self._work(local, scratch)
        finally:
            local.close()

    async def _reach(self) -> None:
        """Raise OSError if no scheduler answers: Dask's worker would wait for it without a word."""
        security: Any = Security  # these have no types
        connecting: Any = connect
        try:
            arguments = security().get_connection_args("worker")
            comm = await connecting(self._address, timeout=SILENCE, **arguments)
        except OSError:
            raise
        except Exception as error:  # of TLS, of many classes
            raise EngineError(
                f"cannot connect to {self._address}: {error}\n  correct distributed.comm.tls in Dask's configuration"
            ) from error
        comm.abort()

    async def _work(self, local: LocalMachine, scratch: str) -> None:
        starting: Any = Worker(
            self._address,
            nthreads=self._slots,
            plugins=(FarmPlugin(local),),
            memory_limit=0,
            local_directory=scratch,
            dashboard=False,
        )
        try:
            worker = await starting
        except RuntimeError as error:
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from error
            raise EngineError(f"Dask's worker does not start: {error.__cause__ or error}") from error
        try:
            log.info("compiling for %s with %d slots", self._address, self._slots)
            await worker.finished()
        finally:
            with contextlib.suppress(Exception):
                await worker.close(timeout=SILENCE, reason="fxpool farm worker ends")
