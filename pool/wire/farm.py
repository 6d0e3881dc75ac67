"""The messages between a host's server and the bridge process that connects it to a farm (`fxpool.farm.bridge`).

A farm is a set of machines behind a cluster engine (Dask, Ray). The server sends whole jobs, and the bridge answers
each with a `Result` or with `Lost`, unless the server has withdrawn it. The bridge lists the farm's machines every few
seconds: a bridge that is silent for longer, or says `Gone`, has no farm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from fxpool.pool.wire.protocol import Message

__all__ = [
    "Away",
    "Connecting",
    "FromBridge",
    "Gone",
    "Lost",
    "Machine",
    "Machines",
    "Order",
    "Result",
    "Run",
    "ToBridge",
    "Withdraw",
]


class Away(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a job may run on a farm: a part of `JobSpec`.

    `farm` is the address of the farm, `key` is equal for jobs with the same result, from any host. `function` runs
    there with an `Order`, in place of the function of `Submit`. `seal` authenticates the payload. `environment` are the
    variables that affect the result. `builds` are digests by name; a machine whose digests differ does not get the job.
    `wait` is the number of seconds after which the host runs the job itself, if its jobs do not take that long.
    """

    farm: str
    key: str
    function: str
    seal: bytes
    environment: dict[str, str]
    builds: dict[str, str]
    wait: Annotated[float, msgspec.Meta(ge=0, lt=1e9)]


class Order(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A job as a machine of the farm gets it, packed with MessagePack: the fields of the host's `Away` and `Submit`."""

    key: str
    label: str
    function: str
    seal: bytes
    environment: dict[str, str]
    builds: dict[str, str]
    timeout: float | None
    payload: bytes


class Machine(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A machine of the farm.

    `address` is the engine's name for it. It runs `slots` jobs at a time, and has `jobs` of them, waiting ones
    included; `running` are the keys of those that have started. `builds` are its digests by name, as in `Away`; a
    machine whose announcement has an unknown form, as other versions of fxpool may send it, has an empty table.
    """

    name: str
    address: str
    slots: Annotated[int, msgspec.Meta(ge=1)]
    jobs: int
    running: list[str] = msgspec.field(default_factory=list)
    builds: dict[str, str]

    def differing(self, wanted: dict[str, str]) -> list[str]:
        """Return the names of the builds that the machine lacks, or has another of."""
        if not self.builds:
            return ["fxpool"]
        return sorted(name for name, digest in wanted.items() if self.builds.get(name) != digest)


def machine_of(announced: object, **more: object) -> Machine:
    """Return the machine that has announced itself; `more` are fields that its engine adds.

    If the announcement cannot be decoded, it is of another version of fxpool: the machine differs in that, and keeps
    the fields that are as expected.
    """
    fields = {**(announced if isinstance(announced, Mapping) else {}), **more}
    try:
        return msgspec.convert(fields, Machine)
    except msgspec.ValidationError:
        return Machine(
            name=_field(fields, "name", str) or _field(fields, "address", str) or "unknown",
            address=_field(fields, "address", str) or "",
            slots=max(1, _field(fields, "slots", int) or 1),
            jobs=_field(fields, "jobs", int) or 0,
            builds={},
        )


def _field(fields: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    return value if isinstance(value := fields.get(name), kind) else None


# ---------------------------------------------------------------- server to bridge


class Run(Message):
    """Runs a job on one of `machines`, which are addresses. The payload is the packed `Order`."""

    job: int
    key: str
    priority: int
    machines: list[str]


class Withdraw(Message):
    """Withdraws a job. It ends unless another host waits for it."""

    job: int


# ---------------------------------------------------------------- bridge to server


class Machines(Message):
    """Lists the machines that the farm has now."""

    machines: list[Machine]


class Result(Message):
    """The job's function returned after `seconds` on the machine of this name; the payload is its result."""

    job: int
    machine: str
    seconds: float


class Lost(Message):
    """The job has no result. `machine` is empty unless it failed there."""

    job: int
    reason: str
    machine: str = ""


class Connecting(Message):
    """The bridge is connecting, which may take an engine a minute."""


class Gone(Message):
    """The farm cannot be reached, and its jobs are lost. The bridge goes on trying, and lists the machines again."""

    reason: str


ToBridge = Run | Withdraw
FromBridge = Machines | Result | Lost | Connecting | Gone
