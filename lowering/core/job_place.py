"""Job specifications with this process's environment, import path, working directory and limits."""

from __future__ import annotations

from collections.abc import Mapping

from fxpool import config
from fxpool.lowering.core import pool_environment
from fxpool.pool import JobSpec

__all__ = ["spec"]


def spec(label: str, environment: Mapping[str, str]) -> JobSpec:
    """Return a job specification under the current settings, with this program's import path and working directory.

    `environment` are the job's variables in addition to its zygote's. Limits are in seconds and bytes.
    """
    settings = config.current()
    return JobSpec(
        label=label,
        environment=pool_environment.job_environment(environment),
        sys_path=pool_environment.import_path(),
        cwd=pool_environment.working_directory(),
        timeout=settings.job_timeout,
        memory=settings.job_memory,
    )
