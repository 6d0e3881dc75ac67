"""The engine of an address, and the settings that a machine of a farm needs: a key file and a cache. Imports no torch.

Engines are imported inside functions, because only the one in use need be installed, and so is everything else that the
bridge, which only needs the engine, can do without.
"""

from __future__ import annotations

from pathlib import Path

from fxpool import config, setting_values
from fxpool.errors import ConfigurationError
from fxpool.farm.engine import Engine, Worker

__all__ = ["check_cache", "engine_of", "key_file", "worker_of"]


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


def key_file() -> Path:
    """Return the key file. Raises ConfigurationError if it is not set, or unusable."""
    from fxpool.codecache.bundle.authentication import Keyring  # see above

    path = config.current().remote_key_file
    if path is None:
        raise ConfigurationError(
            "a farm needs a key file, which authenticates requests and results",
            remedy="create a key with `fxpool cache key FILE` on one machine, copy it to the others, and set "
            "FXPOOL_REMOTE_KEY_FILE=FILE",
        )
    Keyring.load(path)
    return path


def check_cache() -> None:
    """Raise StoreError if the cache directory may not be used."""
    from fxpool.codecache.store import blobs  # see above

    blobs.check_directory(str(config.current().cache_dir))
