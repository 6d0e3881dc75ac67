"""One-time warnings that a part of fxpool is disabled, each with its remedy."""

from __future__ import annotations

from fxpool import config, notices
from fxpool.errors import PoolError, PoolUnavailableError, ProtocolError

__all__ = ["counted_as", "say_compiler_changed", "say_not_kept", "say_without_pool", "say_without_remote"]


def say_not_kept(why: object) -> None:
    """Say once that what is compiled can't be kept, and why (with the remedy, where there is one)."""
    notices.switched_off(
        "cache_not_written",
        f"can't keep what it compiles in {config.current().cache_dir}; each process compiles it again: {why}",
    )


def say_compiler_changed() -> None:
    """Say once that what another compiler compiled than the one of the key is not kept."""
    notices.switched_off(
        "compiler_changed",
        "did not keep what it compiled: the C++ compiler, or a file that a script in its place names, was changed "
        "while a graph was compiled. If that is so every time, such a script writes to a file that it names in another "
        "way than by > and >>: set CXX to the compiler itself",
    )


def say_without_remote(switch: str) -> None:
    """Say once that a program asks for a remote cache, and nothing says where one is."""
    notices.switched_off(
        "no_remote_cache",
        f"has no address of a remote cache, and does nothing about {switch}: set FXPOOL_REMOTE_CACHE, or "
        "TORCHINDUCTOR_REDIS_URL or TORCHINDUCTOR_REDIS_HOST and _PORT, and FXPOOL_REMOTE_KEY_FILE",
    )


def counted_as(error: PoolError) -> str:
    """The name under which doing without the pool is counted."""
    return error.counted if isinstance(error, PoolUnavailableError) else f"pool:{type(error).__name__}"


def say_without_pool(error: PoolError, instead: str = "graphs are compiled in this process") -> None:
    """Say once that the pool can't be used, why, and what happens `instead`. A switch that is off says nothing."""
    if isinstance(error, (PoolUnavailableError, ProtocolError)) and config.current().pool != "off":
        more = "\n  `fxpool status` names the server's log; FXPOOL_POOL=off does without a pool"
        more = "" if "FXPOOL_" in str(error) else more
        notices.switched_off(counted_as(error), f"does without its workers, {instead}: {error}{more}")
