"""What a client writes into the private directory for the server it starts."""

from __future__ import annotations

import msgspec

__all__ = ["CONFIG", "ServerConfig"]

CONFIG = "config.json"


class ServerConfig(msgspec.Struct, forbid_unknown_fields=True):
    """The parts of a PoolConfig that the server needs (its environment is its environment)."""

    workers: int | None
    preload: list[str]
    sys_path: list[str]
    start_timeout: float
    job_timeout: float | None
    runtime_root: str
