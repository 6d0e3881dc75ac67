"""What a pool is started with: the asker's settings, and what of them the server finds in its private directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from fxpool.errors import ConfigurationError

__all__ = ["CONFIG", "PoolConfig", "ServerConfig"]

CONFIG = "config.json"


@dataclass(frozen=True)
class PoolConfig:
    """What a client's own server is started with.

    `environment` is the whole environment of server and zygote: nothing is inherited. `workers` None means as many as
    CPU affinity and CPU quota allow. `idle` (``module:function``, several with commas between) is called once in the
    zygote when it has nothing else to do, for what makes later workers start warmer; the first also while workers run,
    where there are cores to spare. `start_timeout` is in seconds.

    Limits: of a job that names none, `job_timeout` (wall time of one attempt in seconds; None: none) and `job_memory`
    (bytes of all its processes; None: `memory.default_limit`); no job is begun while more than
    `memory_high_watermark` (0.0 to 1.0) of that is in use.

    `host` names an environment (see `identity`): its server is shared by all clients on this host and leaves when it
    had none for `idle_timeout` seconds. Empty: a server of this client's own. `preload` are modules that the zygote
    imports before it forks, or functions (``module:function``) that it calls.
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
    """The parts of a PoolConfig that the server needs (its environment is its environment)."""

    workers: int | None
    preload: list[str]
    idle: str
    sys_path: list[str]
    start_timeout: float
    job_timeout: float | None
    job_memory: int | None
    memory_high_watermark: float
    runtime_root: str
    link: str = ""  # where clients of the host look for its socket
    idle_timeout: float = 120.0
    predecessor: str = ""  # private directory of the one that did not answer
