"""One-time warnings that a part of fxpool is disabled, each with its remedy."""

from __future__ import annotations

from fxpool import config, notices
from fxpool.errors import PoolError, PoolUnavailableError, ProtocolError

__all__ = ["counted_as", "say_compiler_changed", "say_not_kept", "say_without_pool", "say_without_remote"]


def say_not_kept(why: object) -> None:
    """Warn once that compiled graphs cannot be cached, with the reason (and the remedy, if there is one)."""
    notices.switched_off(
        "cache_not_written",
        f"can't keep what it compiles in {config.current().cache_dir}; each process compiles it again: {why}",
    )


def say_compiler_changed() -> None:
    """Warn once that a result is not cached because the C++ compiler changed during the compile."""
    notices.switched_off(
        "compiler_changed",
        "did not keep what it compiled: the C++ compiler, or a file that a script in its place names, was changed "
        "while a graph was compiled. If that is so every time, such a script writes to a file that it names in another "
        "way than by > and >>: set CXX to the compiler itself",
    )


def say_without_remote(switch: str) -> None:
    """Warn once that a program enables a remote cache without giving an address."""
    notices.switched_off(
        "no_remote_cache",
        f"has no address of a remote cache, and does nothing about {switch}: set FXPOOL_REMOTE_CACHE, or "
        "TORCHINDUCTOR_REDIS_URL or TORCHINDUCTOR_REDIS_HOST and _PORT, and FXPOOL_REMOTE_KEY_FILE",
    )


def counted_as(error: PoolError) -> str:
    """Return the name under which a compile without the pool is counted."""
    return error.counted if isinstance(error, PoolUnavailableError) else f"pool:{type(error).__name__}"


def say_without_pool(error: PoolError, instead: str = "graphs are compiled in this process") -> None:
    """Warn once that the pool cannot be used, why, and what happens `instead`. Silent if the pool is disabled."""
    if isinstance(error, (PoolUnavailableError, ProtocolError)) and config.current().pool != "off":
        more = "\n  `fxpool status` names the server's log; FXPOOL_POOL=off does without a pool"
        more = "" if "FXPOOL_" in str(error) else more
        notices.switched_off(counted_as(error), f"does without its workers, {instead}: {error}{more}")
