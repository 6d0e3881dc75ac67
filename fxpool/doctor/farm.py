"""The check of the farm (FXPOOL_FARM) by `fxpool doctor`: it answers, and has machines that compile for this host.

The machines are those of `fxpool farm status`, in another process: it imports torch and the engine, which may hang.
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from fxpool import child_python, config, quantities, temporary
from fxpool.doctor.findings import FAIL, OK, WARN, Finding
from fxpool.errors import FxpoolError
from fxpool.farm import addresses, engine

__all__ = ["farm", "judge"]

# Seconds: torch's import, this host's digests, and an engine's connection; Ray's may take two minutes on a busy head.
_PATIENCE = 60.0
_NO_MACHINE = "start `fxpool farm worker` on the farm's machines, with the same key file"
_EQUAL = (
    "give all machines this host's releases of torch, Triton, Python and fxpool, and for graphs on the CPU its "
    "C++ compiler and kind of processor"
)


def farm() -> Iterator[Finding]:
    """Check the farm, if there is one. Its key file is a requirement."""
    address = config.current().farm
    if address is None:
        return
    try:
        addresses.engine_of(address)
        engine.key_file()
    except FxpoolError as error:
        yield Finding("farm", FAIL, error.message, error.remedy)
        return
    with temporary.directory("doctor") as directory:
        try:
            done = subprocess.run(
                child_python.command("fxpool", "farm", "status", "--json"),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PATIENCE,
                check=False,
                # This host's digests are kept in a cache, and the user's is not changed.
                env=child_python.environment({**os.environ, "FXPOOL_CACHE_DIR": directory}),
            )
        except subprocess.TimeoutExpired:
            yield _unanswered(address, f"no answer within {_PATIENCE:.0f} s")
            return
    if done.returncode not in (0, 1) or "Traceback" in done.stderr:
        said = done.stderr.rpartition("fxpool: ")[2].split("\n")
        yield _unanswered(address, " ".join(" ".join(said).split()[-40:]))
        return
    machines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    yield judge(address, machines)


def _unanswered(address: str, why: str) -> Finding:
    scheduler = "Ray's head (ray start --head)" if address.startswith("ray") else "the scheduler (dask scheduler)"
    remedy = f"start {scheduler}, or correct FXPOOL_FARM; until then graphs are compiled on this host"
    return Finding("farm", FAIL, why if address in why else f"{address}: {why}", remedy)


def judge(address: str, machines: Sequence[dict[str, Any]]) -> Finding:
    """Return the finding about a farm's machines, as `fxpool farm status --json` lists them."""
    if not machines:
        return Finding("farm", WARN, f"{address} answers and has no machine", _NO_MACHINE)
    equal = sum(not machine["differs"] for machine in machines)
    devices = sum(machine["devices_only"] for machine in machines)
    number = quantities.counted(len(machines), "machine")
    facts = f"{address} answers; {equal} of {number} can compile for this host"
    facts += f", {devices} more only graphs on GPUs" if devices else ""
    if equal == len(machines):
        return Finding("farm", OK, facts)
    counts = collections.Counter(name for machine in machines for name in machine["differs"])
    facts += "; others differ in " + ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
    return Finding("farm", WARN if equal or devices else FAIL, facts, f"{_EQUAL}; see `fxpool farm status`")
