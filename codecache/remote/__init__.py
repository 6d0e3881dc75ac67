"""A cache that machines share, behind the local store; every value is authenticated before it is decoded.

    lookup ──▶ local store ──miss──▶ level ──▶ thread, with a deadline ──▶ client ──▶ Redis, Valkey or S3
                    ▲                  │                                     │
                    └── written back ──┴──── values: MAC, size, digest ◀─────┘
    publish ─▶ uploads ─▶ background thread ─▶ client
    miss ────▶ leases ──▶ background thread ─▶ client

remote_values    names and bytes of values in the remote
breaker          decides whether to ask the remote, and for how long: a state machine without clock or network
client           the protocol of clients, and their error
redis_client     Redis and Valkey
s3_client        stores that speak S3
access           the remote as its parts share it: clients, breaker, and the thread of a part
remote_level     looks entries up in the remote, within a deadline
uploads          sends new entries to the remote, in the background
leases           decides which machine compiles a graph, while the others wait
pending_uploads  entries that are left to upload for the next process
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fxpool import forks, remote_stores
from fxpool.errors import ConfigurationError

if TYPE_CHECKING:
    from fxpool.codecache.remote.client import Client

__all__ = ["connect", "shown"]


def connect(address: str, seconds: float) -> Client:
    """Return a client, without connecting yet. `seconds` is the most that one of its requests may take.

    Raises ConfigurationError if the package for it is not installed, or if the address is invalid.
    """
    # Inductor's variables for Redis may name an address that no setting has checked.
    store = remote_stores.by_scheme(address.partition("://")[0]) or remote_stores.STORES[0]
    module, _, name = store.client.partition(".")
    try:
        with forks.held_off():  # it imports a package, maybe in a background thread
            client: Client = getattr(importlib.import_module(f"{__name__}.{module}"), name)(address, seconds)
            return client
    except ImportError as error:
        raise ConfigurationError(
            f"the remote cache {shown(address)} needs the package {store.package}: {error}",
            remedy=f"pip install 'fxpool[{store.extra}]'",
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"{shown(address)} is not the address of a remote cache: {error}") from error


def shown(address: str) -> str:
    """Return an address without user and password, and without what follows a question mark."""
    scheme, _, rest = address.partition("://")
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
