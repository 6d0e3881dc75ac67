"""Which engine an address belongs to. Engines are imported inside functions: only the one in use need be installed."""

from __future__ import annotations

from fxpool.errors import ConfigurationError
from fxpool.farm.engine import Engine, Worker

__all__ = ["engine_of", "worker_of"]


def engine_of(address: str) -> Engine:
    """Return the engine for an address. Raises ConfigurationError: no farm has it, or the engine is not installed."""
    if address.startswith(("dask://", "dask+tls://")):
        from fxpool.farm.dask_engine import DaskEngine  # see above

        return DaskEngine(address)
    if address.startswith("ray://"):
        from fxpool.farm.ray_engine import RayEngine  # see above

        return RayEngine(address)
    raise _unknown(address)


def worker_of(address: str, slots: int) -> Worker:
    """Return this machine with so many slots, for `serve`. Raises ConfigurationError as `engine_of`."""
    if address.startswith(("dask://", "dask+tls://")):
        from fxpool.farm.dask_engine import DaskWorker  # see above

        return DaskWorker(address, slots)
    if address.startswith("ray://"):
        from fxpool.farm.ray_engine import RayWorker  # see above

        return RayWorker(address, slots)
    raise _unknown(address)


def _unknown(address: str) -> ConfigurationError:
    return ConfigurationError(
        f"{address!r} is not the address of a farm",
        remedy="give dask://host:8786, dask+tls://host:8786 or ray://host:10001",
    )
