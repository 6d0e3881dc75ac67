"""An engine in a real bridge: importing this module there replaces the engines, and elsewhere nothing.

The functions of its jobs (`Away.function`) are the names of methods; a job's input is a file of the test's, except for
`shout`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fxpool.farm import addresses
from fxpool.farm.engine import Answer
from fxpool.pool.wire.farm import Machine, Order

__all__ = ["BUILDS", "MACHINE", "SITE"]

BUILDS = {"torch": "1"}
MACHINE = "distant"
#: A module that Python imports when it starts.
SITE = 'import sys\nif "fxpool.farm.bridge" in sys.orig_argv:\n    import pool_engine\n'


class PlayedEngine:
    """A farm with one machine."""

    def __init__(self, address: str) -> None:
        pass

    async def connect(self) -> None:
        pass

    async def machines(self) -> list[Machine]:
        return [Machine(name=MACHINE, address="tcp://m", slots=8, jobs=0, builds=BUILDS)]

    async def run(self, key: str, packed: bytes, machines: Sequence[str], priority: int) -> bytes:
        order = msgspec.msgpack.decode(packed, type=Order)
        answer = Answer(machine=MACHINE, seconds=0.1)
        if order.function == "fail":
            answer.error = "WorkerDiedError: it died"
        elif order.function == "crash":
            os._exit(3)
        elif order.function == "wait":
            answer.payload = await self._wait(Path(order.payload.decode()))
        else:
            answer.payload = order.payload.upper()
        return msgspec.msgpack.encode(answer)

    async def _wait(self, mark: Path) -> bytes:
        """Make one file when a job has begun and another one when it is withdrawn; wait for a third one."""
        mark.with_name(f"{mark.name}-sent").touch()
        try:
            while not mark.with_name(f"{mark.name}-answer").exists():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            mark.with_name(f"{mark.name}-withdrawn").touch()
            raise
        return b"theirs"

    async def close(self) -> None:
        pass


if "fxpool.farm.bridge" in sys.orig_argv:
    addresses.engine_of = PlayedEngine
