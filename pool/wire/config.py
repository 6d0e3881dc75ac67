"""Settings of a pool: the client's, and the part of them that the server finds in its private directory."""

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

    `environment` is the whole environment of server and zygote: nothing is inherited. `workers` None means as many as
    CPU affinity and CPU quota allow. `idle` (``module:function``, several with commas between) is called once in the
    zygote when it has nothing else to do, to make later workers start warmer; the first also while workers run, if
    there are cores to spare. `start_timeout` is in seconds.

    Limits of jobs that name none: `job_timeout` (wall time of one attempt in seconds; None: none) and `job_memory`
    (bytes of all its processes; None: `memory.default_limit`). No job begins while more than `memory_high_watermark`
    (0.0 to 1.0) of the host's memory is in use.

    `host` names an environment (see `identity`): its server is shared by all clients on this host and ends after
    `idle_timeout` seconds without any. Empty: a server of this client's own. `preload` lists modules that the zygote
    imports before it forks, or functions (``module:function``) that it calls.

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
    host: str = ""
    idle_timeout: float = 120.0

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ConfigurationError(f"a pool needs at least one worker, not {self.workers}")


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
    runtime_root: str
    link: str = ""  # where clients of this host find its socket
    idle_timeout: float = 120.0
    predecessor: str = ""  # private directory of the server that did not answer
    client: int = 0  # the process that starts it
