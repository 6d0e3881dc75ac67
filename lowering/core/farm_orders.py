"""The input of a job that a farm's machine runs for another host."""

from __future__ import annotations

import msgspec

__all__ = ["AWAY_JOB", "PREPARE_FOR_OTHERS_JOB", "FarmOrder", "request_name", "result_name"]

#: The job that compiles another host's request, by the pool's naming.
AWAY_JOB = "fxpool.lowering.worker.farm_job:away_job"

#: The job that prepares the machine for such requests.
PREPARE_FOR_OTHERS_JOB = "fxpool.lowering.worker.farm_job:prepare_for_others_job"


class FarmOrder(msgspec.Struct, kw_only=True):
    """A request of another host, `seal` and `request` as it sent them, and this machine's directories.

    `builds` are the digests that the host asks for. `key_file` has the keys that authenticate both directions.
    """

    key: str
    seal: bytes
    request: bytes
    builds: dict[str, str]
    store: str
    toolchain_dir: str | None
    key_file: str


def request_name(key: str) -> str:
    """Return the name under which a request is sealed."""
    return f"fxpool/farm/request/{key}"


def result_name(key: str) -> str:
    """Return the name under which its result is sealed."""
    return f"fxpool/farm/result/{key}"
