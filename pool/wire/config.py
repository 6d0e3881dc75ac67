"""Settings of a pool: the client's, and the part of them that the server reads from its private directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from fxpool.errors import ConfigurationError

__all__ = ["CONFIG", "PoolConfig", "ServerConfig"]

CONFIG = "config.json"


@dataclass(frozen=True)
class PoolConfig:
    """Settings of a client's pool.

    `environment` is the complete environment of server and zygote; they inherit no other variables. `workers` is the
    number of slots; None means as many as CPU affinity, CPU quota and memory allow. `preload` lists modules that the
    zygote imports before it forks, and functions (``module:function``) that it calls. `idle` lists functions
    (``module:function``, separated by commas) that the zygote calls once when it has nothing else to do, so that later
    workers start faster. It calls the first of them even while workers run, if cores are free. `start_timeout` is in
    seconds.

    `job_timeout` (wall time of one attempt, in seconds; None: unlimited) and `job_memory` (bytes of all of a job's
    processes; None: `memory.default_limit`) apply to jobs that set no limits. No job starts while more than
    `memory_high_watermark` (0.0 to 1.0) of the host's memory is in use.

    A server that is silent for `patience` seconds counts as hung, and another one takes its place; a zygote or worker
    that is suspended for as long (SIGSTOP, a debugger) is killed, and its jobs start again.

    `host` names an environment (see `identity`), whose server all clients on this host share; the server ends after
    `idle_timeout` seconds without a client. If `host` is empty, the client starts a private server. A server connects
    to the farm at address `farm` ahead of the first job for it.

    Raises:
        ConfigurationError: `workers` is less than 1.
    """

    workers: int | None = None
    preload: tuple[str, ...] = ()
    idle: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    sys_path: tuple[str, ...] = ()
    runtime_dir: str | None = None
    start_timeout: float = 120.0
    job_timeout: float | None = 3600.0
    job_memory: int | None = None
    memory_high_watermark: float = 0.9
    patience: float = 20.0
    host: str = ""
    idle_timeout: float = 120.0
    farm: str = ""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ConfigurationError(f"the pool needs at least one worker, got {self.workers}")


class ServerConfig(msgspec.Struct, forbid_unknown_fields=True):
    """The parts of a PoolConfig that the server reads; `PoolConfig.environment` is its own environment."""

    workers: int | None
    preload: list[str]
    idle: str
    sys_path: list[str]
    start_timeout: float
    job_timeout: float | None
    job_memory: int | None
    memory_high_watermark: float
    patience: float
    runtime_root: str
    link: str = ""  # path under which the host's clients find its socket
    idle_timeout: float = 120.0
    predecessor: str = ""  # private directory of the server that it replaces, which did not answer
    client: int = 0  # pid of the process that starts it
    farm: str = ""
