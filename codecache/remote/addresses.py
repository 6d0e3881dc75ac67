"""Makes the client for the address of a remote cache, and names the package that it needs."""

from __future__ import annotations

from fxpool import forks
from fxpool.codecache.remote.client import Client
from fxpool.codecache.remote.redis_client import RedisClient
from fxpool.codecache.remote.s3_client import S3Client
from fxpool.errors import ConfigurationError

__all__ = ["connect", "shown"]


def connect(address: str, seconds: float) -> Client:
    """Return a client, without connecting yet. `seconds` is the most that one of its requests may take.

    Raises ConfigurationError if the package for it is not installed, or if the address is invalid.
    """
    s3 = address.startswith("s3://")
    try:
        with forks.held_off():  # it imports a package, maybe in a background thread
            return S3Client(address, seconds) if s3 else RedisClient(address, seconds)
    except ImportError as error:
        package, extra = ("obstore", "s3") if s3 else ("redis", "redis")
        raise ConfigurationError(
            f"the remote cache {shown(address)} needs the package {package}: {error}",
            remedy=f"pip install 'fxpool[{extra}]'",
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"{shown(address)} is not the address of a remote cache: {error}") from error


def shown(address: str) -> str:
    """Return an address without user and password, and without what follows a question mark."""
    scheme, _, rest = address.partition("://")
    place, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}"
