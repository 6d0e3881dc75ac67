"""One-time warnings that a part of fxpool is disabled, each with its remedy."""

from __future__ import annotations

from fxpool import config, notices
from fxpool.errors import PoolError, PoolUnavailableError, ProtocolError

__all__ = ["counted_as", "say_compiler_changed", "say_not_kept", "say_temporary", "say_without_pool",
           "say_without_remote"]  # fmt: skip


def say_not_kept(why: object) -> None:
    """Warn once that compiled graphs cannot be cached, with the reason (and the remedy, if there is one)."""
    notices.switched_off(
        "cache_not_written",
        f"cannot store compiled graphs in {config.current().cache_dir}, so each process compiles them again: {why}",
    )


def say_temporary(cache_dir: str, why: str) -> None:
    """Warn once that the cache is in the temporary directory, because the home cannot hold it."""
    notices.switched_off(
        "cache_is_temporary",
        f"compiled graphs are stored in {cache_dir}, which a reboot or a new container may remove: {why}\n"
        "  set FXPOOL_CACHE_DIR to a directory that you own and that stays",
    )


def say_compiler_changed() -> None:
    """Warn once that a result is not cached because the C++ compiler changed during the compile."""
    notices.switched_off(
        "compiler_changed",
        "a compiled graph was not stored: the C++ compiler, or a file that a wrapper script of it names, changed "
        "during the compile. If this happens every time, the wrapper script writes to a file that it names by other "
        "means than > and >>: set CXX to the compiler itself",
    )


def say_without_remote(switch: str) -> None:
    """Warn once that a program enables a remote cache without giving an address."""
    notices.switched_off(
        "no_remote_cache",
        f"{switch} has no effect without the address of a remote cache: set FXPOOL_REMOTE_CACHE, or "
        "TORCHINDUCTOR_REDIS_URL or TORCHINDUCTOR_REDIS_HOST and _PORT, and FXPOOL_REMOTE_KEY_FILE",
    )


def counted_as(error: PoolError) -> str:
    """Return the name under which a compile without the pool is counted."""
    return error.counted if isinstance(error, PoolUnavailableError) else f"pool:{type(error).__name__}"


def say_without_pool(error: PoolError, instead: str = "graphs are compiled in this process") -> None:
    """Warn once that the pool cannot be used, why, and what happens `instead`. Silent if the pool is disabled."""
    if isinstance(error, (PoolUnavailableError, ProtocolError)) and config.current().pool != "off":
        more = "\n  `fxpool status` names the server's log; set FXPOOL_POOL=off to run without a pool"
        more = "" if "FXPOOL_" in str(error) else more
        notices.switched_off(counted_as(error), f"running without workers, {instead}: {error}{more}")
