"""A job's environment, limits and priority, as its caller, the server and the worker know it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from fxpool.pool.wire.farm import Away

__all__ = ["JobSpec", "Limit", "Preparation"]

#: The limits of a job, by their names in `JobSpec`.
Limit = Literal["timeout", "memory"]


class Preparation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker calls `function` on `argument` before its job.

    That makes the process ready for all jobs with an equal preparation, and does nothing else. The zygote keeps a copy
    of the process (a branch), and forks the workers of later jobs from that. If it raises, the job runs all the same.
    """

    function: str
    argument: bytes


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job's environment, limits and priority.

    Attributes:
        label: name shown in messages and logs.
        environment: variables added to those of the zygote; None removes a variable.
        sys_path: directories put before the zygote's import path.
        cwd: the working directory; None: the server's private directory, which holds no input for a job.
        timeout: seconds of wall time for an attempt; None means the server's limit.
        memory: bytes for all of the job's processes; None means the server's limit.
        retries: number of worker deaths after which the job is tried again.
        priority: queued jobs of higher priority start first.
        dedup_key: jobs with the same non-empty key have the same result, so that a job submitted while another is
            queued or running waits for it (single-flight), whichever client submits it.
        reuse: the job leaves its process unchanged, and may run in a worker that ran such jobs before, with the same
            environment, sys_path, cwd and log levels.
        exclusive: no other job may run at the same time.
        best_effort: the job is for later callers. The server runs it while most slots are free, even after this
            process has left.
        away: how a farm may run the job instead of this host.
        preparation: a function that workers call before the job, and its argument. Later workers of such jobs, in the
            same environment, are forked from a process that has called it.

    A sub-job inherits its parent's environment, to which its own entries are added, and its sys_path, cwd and priority.
    It is under its parent's limits. Its own values of these fields, `dedup_key` and `best_effort` are ignored, and it
    has no preparation.

    Raises:
        ValueError: `timeout` is not a positive, finite number of seconds.
    """

    label: str
    environment: Mapping[str, str | None] = {}
    sys_path: Sequence[str] = ()
    cwd: str | None = None
    timeout: float | None = None
    memory: int | None = None
    retries: int = 1
    priority: int = 0
    dedup_key: str = ""
    reuse: bool = False
    exclusive: bool = False
    best_effort: bool = False
    preparation: Preparation | None = None
    away: Away | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise ValueError(f"a job's timeout must be above 0 s, got {self.timeout}")
