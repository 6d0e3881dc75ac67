"""Options of a job besides its function and its input."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

__all__ = ["JobSpec"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobSpec:
    """How a job runs: where, under which limits, and with which priority.

    Attributes:
        label: name shown in messages and logs.
        environment: applied over the zygote's; None removes a variable.
        sys_path: put before the zygote's import path.
        cwd: the working directory; None: a directory of the pool's, with nothing in it for a job to look at.
        timeout: seconds of wall time for one attempt; None is the server's limit.
        memory: bytes of the job's processes together; None is the server's limit.
        retries: number of worker deaths after which the job is tried again.
        priority: waiting jobs of higher priority begin first.
        flight: jobs of equal, non-empty flight have equal results: one submitted while another is under way waits
            for it (single-flight).
        reuse: the job leaves its process as it found it, and may run in a worker that others like it ran in.
        spare: the job is for later callers, not for this process: the server begins it in time to spare, and goes
            on with it after this process has left.

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

    def __post_init__(self) -> None:
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise ValueError(f"a limit of {self.timeout} s")
