"""Has a worker tell which entries of Inductor's tables are torch's own, if this process could not record them.

A graph's key has the entries that the program changed (`inductor_tables`). A process that imported Inductor before
fxpool compares with the entries that a worker recorded, stored beside the graphs. If no process on this host has needed
them with this torch before, it asks a worker: otherwise its graphs would have keys that no other process has.
"""

from __future__ import annotations

import hashlib

from fxpool import config, counters, notices
from fxpool.codecache.key import probe_cache, system_facts
from fxpool.errors import PoolError
from fxpool.lowering.core import pool_environment
from fxpool.lowering.core.runtime import Part, runtime
from fxpool.torch_compat.operators import operator_tables

__all__ = ["TABLES_JOB", "settle"]

#: Job: returns torch's entries as a worker recorded them.
TABLES_JOB = "fxpool.lowering.worker.jobs:tables_job"

_QUESTION = ("torch's tables of Inductor",)

log = notices.logger(__name__)


class _Asked(Part):
    """Whether this process has asked a worker, which it does once."""

    def __init__(self) -> None:
        self.done = False


def settle(toolchain_dir: str | None, mode: str, settings: config.Settings) -> None:
    """Find torch's entries if this process did not record them: stored, or from a worker if it compiles by workers.

    Waits for the worker. Without an answer, keys have the digest of the tables instead.
    """
    if operator_tables.are_known():
        return
    state = runtime.part(_Asked)
    if state.done:
        return
    kept = probe_cache.FactCache(toolchain_dir)
    installed = hashlib.sha256(repr(sorted(system_facts.installed_facts(toolchain_dir).items())).encode()).hexdigest()
    identity = (operator_tables.version(), installed)
    answer = kept.read(_QUESTION, identity)
    if answer is not None and operator_tables.settle(answer.get("tables", "").encode("latin-1")):
        return
    if not mode.endswith("subprocess") or settings.pool == "off":
        return
    state.done = True
    try:
        spec = pool_environment.job_spec("torch's tables", {}, settings=settings)
        entries = runtime.pool().submit(TABLES_JOB, b"", spec).result()
    except PoolError as error:
        counters.count("fallbacks", "torch_tables_unknown")
        log.info("cannot ask a worker which entries of Inductor's tables are torch's: %s", error)
        return
    if not operator_tables.settle(entries):
        counters.count("fallbacks", "torch_tables_unknown")
        log.info("a worker did not record the entries of Inductor's tables")
    else:
        kept.write(_QUESTION, identity, {"tables": entries.decode("latin-1")})
