"""The commands ``fxpool farm worker`` and ``fxpool farm status``.

Modules are imported inside functions, so that `fxpool --help` answers at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING

import click

from fxpool import config
from fxpool.commands.output import FOUND_WRONG, fail, width, wrapped

if TYPE_CHECKING:
    from fxpool.pool.wire.farm import Machine

__all__ = ["farm"]


@click.group()
def farm() -> None:
    """Compile on other machines, or for other hosts (FXPOOL_FARM)."""


@farm.command()
@click.argument("address")
@click.option("--slots", type=click.IntRange(min=1), help="Jobs that run at a time; default: as `fxpool serve`.")
def worker(address: str, slots: int | None) -> None:
    """Make this machine a part of the farm at ADDRESS.

    ADDRESS is that of an engine's scheduler: dask://host:8786, dask+tls://host:8786 or ray://host:10001. The machine
    compiles for hosts with the same builds and the same FXPOOL_REMOTE_KEY_FILE, until SIGTERM or Ctrl-C.
    """
    from fxpool.farm import addresses, engine
    from fxpool.farm.engine import EngineError
    from fxpool.pool.host.limits import default_workers

    log = logging.getLogger("fxpool.farm")  # not the root's: Dask would leave out times
    log.addHandler(logging.StreamHandler())
    log.setLevel(logging.INFO)
    machine = addresses.worker_of(address, slots or config.current().workers or default_workers()[0])
    engine.key_file()
    engine.check_cache()
    try:
        machine.serve()
    except EngineError as error:
        fail(str(error))


@farm.command()
@click.option("--json", "as_json", is_flag=True, help="Output one JSON object per machine.")
def status(as_json: bool) -> None:
    """List the farm's machines.

    For each, names the builds in which it differs from this host. Exit status 1: no machine can compile for this host.
    """
    from fxpool.codecache.key import build_digests
    from fxpool.farm.engine import EngineError
    from fxpool.lowering.core.runtime import runtime

    address = config.current().farm
    if address is None:
        fail("there is no farm: set FXPOOL_FARM to its address")
    try:
        machines = asyncio.run(_machines(address))
    except EngineError as error:
        fail(str(error))
    own = build_digests.digests(runtime.toolchain_directory(runtime.store()))
    device = build_digests.digests(runtime.toolchain_directory(runtime.store()), cpp=False)
    able = 0
    for machine in machines:
        differs, for_devices = machine.differing(own), not machine.differing(device)
        able += for_devices
        if as_json:
            facts = {"name": machine.name, "slots": machine.slots, "jobs": machine.jobs}
            click.echo(json.dumps({**facts, "differs": differs, "devices_only": bool(differs) and for_devices}))
            continue
        state = "compiles for this host"
        if differs:
            state = f"compiles {'only GPU graphs' if for_devices else 'nothing'} for this host: other "
            state += ", ".join(differs)
        first = f"{machine.name}  {machine.jobs}/{machine.slots}  "
        click.echo(wrapped(first, state, width()))
    if not able:
        if not machines and not as_json:
            click.echo("no machine: start `fxpool farm worker` on some", err=True)
        raise SystemExit(FOUND_WRONG)


async def _machines(address: str) -> list[Machine]:
    from fxpool.farm.addresses import engine_of

    engine = engine_of(address)
    await engine.connect()
    try:
        return await engine.machines()
    finally:
        await engine.close()
