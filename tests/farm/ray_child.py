"""A process beside a Ray cluster: a machine of its farm, or the bridge of a host. Run by `ray_cluster`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from fxpool.farm.engine import PERIOD, EngineError
from fxpool.farm.ray_engine import RayEngine, RayWorker


async def _host(address: str, machines: int, jobs: list[str], within: float | None) -> list[dict[str, Any]]:
    """Run jobs at the same time, and list machines as a bridge does.

    Prints a line once it has connected, and another once all jobs are asked for.
    """
    engine = RayEngine(address)
    await engine.connect()
    print("connected", flush=True)
    while len(listed := await engine.machines()) != machines:
        await asyncio.sleep(0.05)
    addresses = [machine.address for machine in listed]

    async def run(job: str) -> dict[str, Any]:
        start = time.monotonic()
        try:
            answer = await asyncio.wait_for(engine.run(job.split(" ")[0], job.encode(), addresses, 0), within)
            report: dict[str, Any] = {"answer": answer.decode()}
        except asyncio.TimeoutError:
            report = {"withdrawn": True}
        except EngineError as error:
            report = {"error": str(error)}
        return {**report, "seconds": time.monotonic() - start, "at": time.monotonic()}

    async def list_machines() -> None:
        while True:
            await engine.machines()
            await asyncio.sleep(PERIOD)

    running = asyncio.gather(*map(run, jobs))
    await asyncio.sleep(0.1)
    await engine.machines()  # it was sent after the jobs, so they have arrived
    print("asked", flush=True)
    listing = asyncio.create_task(list_machines())
    reports = await running
    listing.cancel()
    await asyncio.wait([listing])
    await engine.close()
    return reports


async def _large(address: str, size: int) -> list[dict[str, Any]]:
    """Have a machine return an order of so many bytes."""
    engine = RayEngine(address)
    await engine.connect()
    while not (listed := await engine.machines()):
        await asyncio.sleep(0.05)
    order = b"large echo " + b"x" * size
    answer = await engine.run("large", order, [machine.address for machine in listed], 0)
    await engine.close()
    return [{"equal": answer == order}]


def main() -> None:
    address, command, *arguments = sys.argv[1:]
    if command == "worker":
        try:
            RayWorker(address, 1, "ray_machine:FakeMachine").serve()
        except EngineError as error:
            print(error)
    elif command == "large":
        print(json.dumps(asyncio.run(_large(address, int(arguments[0])))))
    else:
        print(json.dumps(asyncio.run(_host(address, **json.loads(arguments[0])))))


if __name__ == "__main__":
    main()
