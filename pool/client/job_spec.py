"""Options of a job, besides its function and its input."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from fxpool.pool.wire.farm import Away
from fxpool.pool.wire.messages import Preparation

__all__ = ["JobSpec"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobSpec:
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
        flight: jobs with the same non-empty `flight` have the same result, so that a job submitted while another is
            queued or running waits for it (single-flight).
        reuse: the job leaves its process unchanged, and may run in a worker that ran other such jobs.
        spare: the job is best effort: it is for later callers. The server runs it while most slots are free, even
            after this process has left.
        away: how a farm may run the job instead of this host.
        preparation: a function that workers call before the job, and its argument. Later workers of such jobs, in the
            same environment, are forked from a process that has called it.

    Raises:
        ValueError: `timeout` is not a positive, finite number of seconds.
    """

    label: str
    environment: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    sys_path: Sequence[str] = ()
    cwd: str | None = None
    timeout: float | None = None
    memory: int | None = None
    retries: int = 1
    priority: int = 0
    flight: str = ""
    reuse: bool = False
    spare: bool = False
    preparation: Preparation | None = None
    away: Away | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise ValueError(f"a job's timeout must be above 0 s, got {self.timeout}")
