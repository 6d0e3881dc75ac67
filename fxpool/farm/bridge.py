"""The bridge: a process of a host's server that holds the connection to a farm. Started by `pool.server.farms`.

    python -m fxpool.farm.bridge --farm ADDRESS --socket FD

The engine's client runs here, with its threads and its memory, so that an error in it costs the host its farm and not
its server. The bridge ends with its socket. While the farm does not answer, it tries again every `_AGAIN` seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import socket
import sys

import msgspec

from fxpool import notices
from fxpool.errors import FxpoolError
from fxpool.farm.addresses import engine_of
from fxpool.farm.engine import PERIOD, Answer, Engine, EngineError
from fxpool.pool.host import processes
from fxpool.pool.wire import farm as f
from fxpool.pool.wire.connection import Connection
from fxpool.pool.wire.protocol import Message

__all__ = ["Bridge", "main"]

log = notices.logger(__name__)

# Seconds between two tries to connect, from the first, doubled each time, to the second.
_AGAIN, _LONGEST_AGAIN = 1.0, 30.0


class Bridge:
    """Passes jobs from a socket to an engine, and results back, on the running event loop."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        self._address = address
        self._ended = asyncio.Event()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._engine: Engine | None = None
        self._connection: Connection[f.ToBridge] = Connection(sock, f.ToBridge, self._on_frame, self._on_end)

    async def run(self) -> None:
        """Serve until the socket ends."""
        serving = asyncio.ensure_future(self._serve())
        await self._ended.wait()
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    async def _serve(self) -> None:
        pause = _AGAIN
        while True:
            engine = None
            try:
                engine = engine_of(self._address)
                await self._connect(engine)
                self._engine = engine
                while True:
                    machines = await engine.machines()
                    self._send(f.Machines(machines=machines))
                    pause = _AGAIN
                    await asyncio.sleep(PERIOD)
            except (EngineError, FxpoolError) as error:
                self._send(f.Gone(reason=str(error)))
            except Exception as error:  # of the engine, which is another project's
                log.exception("the connection to the farm failed")
                self._send(f.Gone(reason=f"{type(error).__name__}: {error}"))
            finally:  # after the server knows why its jobs are lost
                self._engine = None
                self._lose_all()
                if engine is not None:
                    await engine.close()
            for _ in range(max(1, int(pause / PERIOD))):
                await asyncio.sleep(PERIOD)
                self._send(f.Gone(reason="it did not answer the last time"))
            pause = min(_LONGEST_AGAIN, 2 * pause)

    async def _connect(self, engine: Engine) -> None:
        """Connect, and say so: the server takes a silent bridge for a hung one."""
        connecting = asyncio.ensure_future(engine.connect())
        try:
            while not connecting.done():
                self._send(f.Connecting())
                await asyncio.wait({connecting}, timeout=PERIOD)
            await connecting
        finally:
            connecting.cancel()

    def _on_frame(self, message: f.ToBridge, payload: memoryview) -> None:
        if isinstance(message, f.Withdraw):
            if (task := self._tasks.pop(message.job, None)) is not None:
                task.cancel()
        elif self._engine is None:
            self._send(f.Lost(job=message.job, reason="the farm does not answer"))
        else:
            self._tasks[message.job] = asyncio.ensure_future(self._job(self._engine, message, bytes(payload)))

    def _on_end(self, error: Exception | None) -> None:
        self._ended.set()

    async def _job(self, engine: Engine, run: f.Run, order: bytes) -> None:
        try:
            packed = await engine.run(run.key, order, run.machines, run.priority)
            answer = msgspec.msgpack.decode(packed, type=Answer)
            if answer.error:
                self._send(f.Lost(job=run.job, reason=answer.error, machine=answer.machine))
            else:
                self._send(f.Result(job=run.job, machine=answer.machine, seconds=answer.seconds), answer.payload)
        except asyncio.CancelledError:
            self._send(f.Lost(job=run.job, reason="it was withdrawn"))
            raise
        except EngineError as error:
            self._send(f.Lost(job=run.job, reason=str(error)))
        except Exception as error:  # as above
            log.exception("job %r failed in the engine", run.key)
            self._send(f.Lost(job=run.job, reason=f"{type(error).__name__}: {error}"))
        finally:
            self._tasks.pop(run.job, None)

    def _lose_all(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()

    def _send(self, message: Message, payload: bytes = b"") -> None:
        if not self._connection.closed:
            self._connection.send(message, payload)


async def _run(descriptor: int, address: str) -> None:
    await Bridge(socket.socket(fileno=descriptor), address).run()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="fxpool.farm.bridge", description="A server's connection to a farm.")
    parser.add_argument("--farm", required=True, help="the farm's address")
    parser.add_argument("--socket", type=int, required=True, help="file descriptor of the socket to the server")
    options = parser.parse_args(arguments)
    os.set_inheritable(options.socket, False)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    processes.name_process("fxpool bridge")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(options.socket, options.farm))
    logging.shutdown()
    os._exit(0)  # the engine's threads may be waiting for a machine that does not answer


if __name__ == "__main__":
    main(sys.argv[1:])
