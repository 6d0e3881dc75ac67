"""Has a worker tell which entries of Inductor's tables are torch's own, if this process could not record them.

A graph's key has the entries that the program changed (`inductor_tables`). A process that imported Inductor before
fxpool compares with the entries that a worker recorded, stored beside the graphs. If no process on this host has used
fxpool with this torch before, it asks a worker: otherwise its first graphs would have keys that no other process has.
"""

from __future__ import annotations

from fxpool import config, notices
from fxpool.codecache.code import program_code
from fxpool.codecache.key import probe_cache
from fxpool.errors import PoolError
from fxpool.lowering.core.runtime import runtime
from fxpool.torch_compat.operators import inductor_tables

__all__ = ["TABLES_JOB", "settle"]

#: Job: record torch's entries; the payload is the toolchain directory, or empty; returns the entries.
TABLES_JOB = "fxpool.lowering.worker.jobs:tables_job"

log = notices.logger(__name__)


class _Asked:
    """Whether this process has asked a worker, which it does once. A `core.runtime.Part`."""

    def __init__(self) -> None:
        self.done = False

    def after_fork_in_child(self) -> None:
        """The parent's answer holds in the child."""

    def reset(self) -> None:
        self.done = False


def settle(toolchain_dir: str | None, mode: str) -> None:
    """Ask a worker for torch's entries if this process compiles by workers, and neither recorded nor finds them.

    Waits for the answer. Without one, keys have the digest of the tables instead.
    """
    if inductor_tables.are_known() or not mode.endswith("subprocess") or config.current().pool == "off":
        return
    state = runtime.part(_Asked)
    if state.done or program_code.knows_torchs_tables(probe_cache.Kept(toolchain_dir)):
        return
    state.done = True
    from fxpool.lowering.core import job_place  # imports the pool: 0.05 s that a process that knows saves

    try:
        payload = (toolchain_dir or "").encode()
        reply = runtime.pool().submit(TABLES_JOB, payload, job_place.spec("torch's tables", {})).result()
    except PoolError as error:
        log.info("cannot ask a worker which entries of Inductor's tables are torch's: %s", error)
        return
    inductor_tables.settle(reply)
