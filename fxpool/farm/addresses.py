"""Which engine an address belongs to. Engines are imported inside functions: only the one in use need be installed."""

from __future__ import annotations

from fxpool import setting_values
from fxpool.errors import ConfigurationError
from fxpool.farm.engine import Engine, Worker

__all__ = ["engine_of", "worker_of"]


def engine_of(address: str) -> Engine:
    """Return the engine for an address. Raises ConfigurationError: no farm has it, or the engine is not installed."""
    return _classes(address)[0](address)


def worker_of(address: str, slots: int) -> Worker:
    """Return this machine with so many slots, for `serve`. Raises ConfigurationError as `engine_of`."""
    return _classes(address)[1](address, slots)


def _classes(address: str) -> tuple[type[Engine], type[Worker]]:
    try:
        setting_values.as_farm(address)
    except setting_values.BadValue:
        raise ConfigurationError(
            f"{address!r} is not the address of a farm",
            remedy="give dask://host:8786, dask+tls://host:8786 or ray://host:10001",
        ) from None
    if address.startswith("dask"):
        from fxpool.farm.dask_engine import DaskEngine, DaskWorker  # see above

        return DaskEngine, DaskWorker
    from fxpool.farm.ray_engine import RayEngine, RayWorker  # see above

    return RayEngine, RayWorker
