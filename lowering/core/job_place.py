"""Job specifications with this process's environment, import path, working directory and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from fxpool import config
from fxpool.lowering.core import pool_environment
from fxpool.pool import JobSpec, Preparation

__all__ = ["spec"]

_IMPORT_CODE = "fxpool.lowering.worker.compiler:import_code"


def spec(
    label: str,
    environment: Mapping[str, str],
    modules: Sequence[str] = (),
    libraries: Sequence[str] = (),
    *,
    settings: config.Settings | None = None,
) -> JobSpec:
    """Return a job specification under these or the current settings.

    It has this program's import path and working directory. `environment` are the job's variables in addition to its
    zygote's. Limits are in seconds and bytes. Workers import `modules` of the program and load `libraries` before the
    job.
    """
    settings = settings or config.current()
    argument = msgspec.msgpack.encode((modules, libraries))
    return JobSpec(
        label=label,
        environment=pool_environment.job_environment(environment),
        sys_path=pool_environment.import_path(),
        cwd=pool_environment.working_directory(),
        preparation=Preparation(_IMPORT_CODE, argument) if modules or libraries else None,
        **settings.job_limits,
    )
