"""Settings of a pool: the client's, which the server reads from its private directory."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fxpool.errors import ConfigurationError

__all__ = ["CONFIG", "PoolConfig", "ServerConfig"]

CONFIG = "config.json"


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    environment: Mapping[str, str] = {}
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


class ServerConfig(PoolConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A PoolConfig as the server gets it, with its `runtime_dir` and without `environment`, which is the server's own.

    `predecessor` is the private directory of the server that it replaces, which did not answer. `client` is the pid of
    the process that starts it.
    """

    predecessor: str = ""
    client: int = 0
