"""The settings that a machine of a farm needs: a key file and a cache. Does not import torch."""

from __future__ import annotations

from pathlib import Path

from fxpool import config
from fxpool.codecache.bundle.authentication import Keyring
from fxpool.codecache.store import blobs
from fxpool.errors import ConfigurationError

__all__ = ["check_cache", "key_file"]


def key_file() -> Path:
    """Return the key file. Raises ConfigurationError if it is not set, or unusable."""
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
    blobs.check_directory(str(config.current().cache_dir))
